"""Temporary Unix accounts, and an interpreter that they can run, for tests of jobs that run as their owners."""

import os
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.as_owner.calls import HELPER
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

_SCRIPT = """\
#!{python}
import sys
from service.as_owner.program import main
sys.exit(main())
"""


@dataclass(frozen=True)
class UnixUser:
    """A temporary account."""

    name: str
    uid: int
    gid: int
    home: Path


@contextmanager
def unix_users(count: int) -> Iterator[list[UnixUser]]:
    """Make accounts with homes; they and their processes are removed at the end."""
    names = [f"ty-{secrets.token_hex(4)}" for _ in range(count)]
    homes = Path(tempfile.mkdtemp(prefix="trainyard-homes-"))
    homes.chmod(0o755)
    made = []
    try:
        for name in names:
            home = homes / name
            _change_accounts("useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", name)
            made.append(name)
        entries = [pwd.getpwnam(name) for name in names]
        yield [UnixUser(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir)) for entry in entries]
    finally:
        for name in made:
            subprocess.run(["pkill", "-KILL", "-u", name], check=False)
            _change_accounts("userdel", "--force", name)
        shutil.rmtree(homes, ignore_errors=True)


@contextmanager
def readable_python() -> Iterator[Path]:
    """Yield an interpreter with the packages of this one and the helper beside it, which every account can run.

    The interpreter of the tests may be below a home that is closed to others.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainyard-python-"))
    folder.chmod(0o755)
    try:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base = next(each for each in (Path(sys.base_prefix) / "bin", Path("/usr/bin")) if _is_open(each / version))
        bin_folder, packages = folder / "venv" / "bin", folder / "venv" / "lib" / version / "site-packages"
        bin_folder.mkdir(parents=True)
        packages.mkdir(parents=True)
        (folder / "venv" / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
        python = bin_folder / "python"
        python.symlink_to(base / version)
        (packages / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        helper = bin_folder / HELPER
        helper.write_text(_SCRIPT.format(python=python))
        helper.chmod(0o755)
        yield python
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_open(program: Path) -> bool:
    """Whether every account can run a program."""
    try:
        way = [program.resolve(strict=True), *program.resolve().parents]
    except OSError:
        return False
    return all(each.stat().st_mode & stat.S_IXOTH for each in way)


def _change_accounts(*command: str) -> None:
    """Run a command as soon as no other test changes the accounts."""

    def is_done() -> bool:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 and "cannot lock" not in done.stderr:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.returncode == 0

    wait_until(is_done, 20, "the lock of the account database")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class OwnerService(ServiceProcess):
    """A service that runs jobs as their owners, as root or as an ordinary account with a rule in sudoers."""

    def __init__(self, folder: Path, python: Path, account: UnixUser | None = None, **settings: str) -> None:
        """Prepare the service.

        Args:
            folder: Every account can enter it.
            account: The account of the service; None: root.
        """
        quick = {"run_as": "owner", "accelerator": "cpu", "tick_seconds": "0.3"}
        super().__init__(folder, **(quick | settings))
        self._python = python
        self._account = account

    def start(self) -> None:
        for path, mode in ((self.state_dir, 0o700), (self.runs_dir, 0o3733)):
            if not path.exists():
                path.mkdir()
                if self._account is not None:
                    os.chown(path, self._account.uid, self._account.gid)
                path.chmod(mode)
        super().start()

    def _command(self) -> list[str]:
        command = [str(self._python), *super()._command()[1:]]
        if self._account is None:
            return command
        ids = [f"--reuid={self._account.uid}", f"--regid={self._account.gid}"]
        return ["setpriv", *ids, "--init-groups", "--pdeathsig=KILL", *command]

    def user_client(self, admin: Client, user: UnixUser) -> Client:
        """Return a client of a user whose name belongs to the Unix account."""
        admin.link_unix_user(user.name)
        return Client(self.url, admin.create_token(user.name, role="user", may_run_code=True).token)


@contextmanager
def sudo_rule(account: UnixUser, owners: list[UnixUser], python: Path) -> Iterator[None]:
    """Let an account run the helper beside an interpreter as the owners of jobs, by a file in sudoers.d."""
    file = Path("/etc/sudoers.d") / account.name
    names = ", ".join(owner.name for owner in owners)
    file.write_text(f'{account.name} ALL = ({names}) NOPASSWD: {python.with_name(HELPER)} ""\n')
    file.chmod(0o440)
    try:
        _run("visudo", "-c", "-q", "-f", str(file))
        yield
    finally:
        file.unlink()


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder that every account can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-owners-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
