"""A real PostgreSQL server for the tests, in a temporary folder that is removed at the end."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.support.packages import install

INSTALLED = Path("/usr/lib/postgresql")
"""The folder in which Debian installs each version's programs."""
INSTALL_HINT = "PostgreSQL's server programs (initdb, pg_ctl) are missing; install the package `postgresql`"


class PostgresMissingError(Exception):
    """There is no PostgreSQL on this machine and it cannot be installed."""


class PostgresServer:
    """A running server with one superuser and a Unix socket."""

    def __init__(self, socket_folder: Path, user: str) -> None:
        self.folder = socket_folder
        self._user = user
        self._created = 0
        self._templates: dict[Callable[[str], object], str] = {}

    @property
    def pid(self) -> int:
        """Process id of the server; each of its children serves one connection."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def create_database(self, template: str | None = None) -> str:
        """Create a database and return its URL for SQLAlchemy with psycopg.

        Args:
            template: URL of a database to copy; nothing may be connected to it.
        """
        self._created += 1
        name = f"test_{self._created}"
        source = make_url(template).database if template else "template0"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        return f"postgresql+psycopg://{self._user}@/{name}?host={self.folder}"

    def copy_of(self, prepare: Callable[[str], object]) -> str:
        """Return a copy of a database that `prepare`, called once per session, has filled."""
        if prepare not in self._templates:
            url = self.create_database()
            prepare(url)
            self._templates[prepare] = url
        return self.create_database(self._templates[prepare])

    def drop_database(self, url: str) -> None:
        """Delete a database, even if there are connections to it."""
        self._execute(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(host=str(self.folder), user=self._user, dbname="postgres", autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Start a server and yield it; stop and remove it in any case.

    Args:
        durable: Flush commits to disk, as in production; for benchmarks.

    Raises:
        PostgresMissingError: the message explains how to install it.
    """
    programs = _programs()
    root = Path(tempfile.mkdtemp(prefix="trainyard-pg-"))
    account = _account(root)
    data = root / "data"
    reaper = subprocess.Popen(
        [sys.executable, "-m", "tests.support.postgres_reaper", str(root)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _run([programs / "initdb", "-D", data, "-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync"], account)
        options = f"-c listen_addresses='' -c unix_socket_directories='{root}' -c max_connections=200"
        if not durable:
            options += " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        options += " -c shared_buffers=32MB"
        _run([programs / "pg_ctl", "-D", data, "-w", "-l", root / "log", "-o", options, "start"], account)
        try:
            yield PostgresServer(root, "test")
        finally:
            _run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], account)
    finally:
        reaper.communicate()


def _programs() -> Path:
    """Return the folder of the server programs; install the Debian package if that is possible."""
    if folder := _find():
        return folder
    install("PostgreSQL", "postgresql")
    if folder := _find():
        return folder
    raise PostgresMissingError(INSTALL_HINT)


def _find() -> Path | None:
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    versions = INSTALLED.glob("*/bin")
    candidates += sorted(versions, key=lambda path: _number(path.parent.name), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)


def _number(version: str) -> float:
    try:
        return float(version)
    except ValueError:
        return 0.0


def _account(root: Path) -> pwd.struct_passwd | None:
    """Give the folder to an unprivileged account, since initdb refuses root. None: this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(root, account.pw_uid, account.pw_gid)
        root.chmod(0o755)
        return account
    raise PostgresMissingError("PostgreSQL refuses to run as root, and there is no account `postgres` or `nobody`")


def _run(command: list[str | Path], account: pwd.struct_passwd | None) -> None:
    # A new session: Ctrl-C in the terminal ends the tests, which then stop the server.
    done = subprocess.run(
        command,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')}")
