"""A Docker engine for the tests: a running one, or one that is installed, started and removed by the tests."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.packages import install
from tests.support.wait import wait_until

PACKAGES = ("docker.io", "docker-compose", "iptables", "debootstrap")
BASE = "trainyard-test-base"
SUITE = "bookworm"
"""The Debian release of the base image; wheels are downloaded for its Python."""


class DockerMissingError(Exception):
    """There is no Docker engine and it cannot be installed."""


class Engine:
    """Docker's command line for one engine."""

    def __init__(self, host: str | None) -> None:
        self.environment = os.environ | ({"DOCKER_HOST": host} if host else {})

    def run(self, *command: str | Path, timeout: float = 60.0, **options: object) -> str:
        """Run a command and return its output.

        Raises:
            RuntimeError: with what it said.
        """
        return execute(command, self.environment, timeout, **options)

    def answers(self) -> bool:
        try:
            self.run("docker", "version", timeout=20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def has_image(self, name: str) -> bool:
        return bool(self.run("docker", "images", "--quiet", name).strip())


def execute(command: Sequence[str | Path], environment: Mapping[str, str], timeout: float, **options: object) -> str:
    """Run a command to its end and return its output.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    done = subprocess.run(  # type: ignore[call-overload]
        command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False, **options
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{output[-3000:]}")
    return str(done.stdout.decode(errors="replace"))


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Yield the engine of DOCKER_HOST, or start one that is removed at the end.

    Raises:
        DockerMissingError: the message explains how to install it.
    """
    engine = Engine(None)
    if shutil.which("docker") and engine.answers():
        yield engine
        return
    _require_programs()
    folder = Path(tempfile.mkdtemp(prefix="trainyard-docker-"))
    socket = f"unix://{folder}/socket"
    bridge = Path("/sys/class/net/docker0").exists()
    parts = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host={socket}"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd", *parts], stdout=log, stderr=log, start_new_session=True)
    try:
        engine = Engine(socket)
        try:
            wait_until(lambda: daemon.poll() is not None or engine.answers(), 60, "dockerd")
        except AssertionError:
            daemon.kill()
        if daemon.poll() is not None:
            raise DockerMissingError(f"dockerd does not run:\n{(folder / 'log').read_text(errors='replace')[-2000:]}")
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(60)
        if not bridge:
            subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _require_programs() -> None:
    needed = ("dockerd", "docker", "docker-compose", "iptables", "debootstrap")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        install("Docker", *PACKAGES)
        missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        raise DockerMissingError(f"not found: {', '.join(missing)}; install the packages {' '.join(PACKAGES)}")


def base_image(engine: Engine) -> str:
    """What stands for the official slim Python image: named by TRAINYARD_TEST_BASE_IMAGE, or made of Debian's packages.

    Raises:
        DockerMissingError: only root can build the image.
    """
    named = os.environ.get("TRAINYARD_TEST_BASE_IMAGE")
    if named or engine.has_image(BASE):
        return named or BASE
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise DockerMissingError("name a base image in TRAINYARD_TEST_BASE_IMAGE, or let root run debootstrap")
    with tempfile.TemporaryDirectory(prefix="trainyard-base-") as folder:
        root = Path(folder) / "root"
        include = "--include=python3,python3-venv,ca-certificates"
        execute(["debootstrap", "--variant=minbase", include, SUITE, root], os.environ, 600)
        for path in (*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")):
            path.unlink()
        tar = Path(folder) / "base.tar"
        execute(["tar", "--create", "--numeric-owner", "--directory", root, "--file", tar, "."], os.environ, 300)
        engine.run("docker", "import", tar, BASE, timeout=300)
    return BASE
