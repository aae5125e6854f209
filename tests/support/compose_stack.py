"""Everything of compose.yaml, brought up for tests from a copy of the tree and removed at the end."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.docker_engine import Engine, base_image
from tests.support.wait import wait_until
from trainyard.client import Client

ROOT = Path(__file__).parents[2]
COPIED = (
    *("compose.yaml", "compose.tls.yaml", ".dockerignore", "pyproject.toml", "constraints.txt", "docker"),
    *("trainyard", "service", "worker", "migrations", "jobs_templates"),
)
EXTRAS = "worker,hf"
"""What the nodes of the tests have: low-rank adapters need peft."""
IMAGES = {"service": "SERVICE_IMAGE", "slurm-controller": "CONTROLLER_IMAGE", "slurm-node": "NODE_IMAGE"}
SOON = {"SUBMIT_TIMEOUT_SECONDS": 20, "CONFIRM_ABSENCE_SECONDS": 15, "POLL_SECONDS": 1, "MAX_POLL_SECONDS": 5}
"""Of Slurm: a submission in whose middle the service was killed is in doubt for seconds, not for minutes."""
STAND_INS = {"postgres": "POSTGRES_IMAGE", "nginx": "NGINX_IMAGE"}
"""Images of others that cannot be pulled everywhere, made of Debian's packages."""
_REPLICAS = 3


class Stack:
    """A project of Compose with its own secrets, images and ports."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.name = f"tytest{os.getpid()}"
        self.seconds: dict[str, float] = {}
        """How long each step took."""
        first = _free_ports(_REPLICAS + 1)
        self.secure_port = first + _REPLICAS
        self._environment = {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_FILE": "compose.yaml:compose.test.yaml:compose.tls.yaml",
            "TRAINYARD_PORTS": f"{first}-{first + _REPLICAS - 1}",
            "TRAINYARD_TLS_BIND": "127.0.0.1",
            "TRAINYARD_TLS_PORT": str(self.secure_port),
            "WORKER_EXTRAS": EXTRAS,
            "DOCKER_BUILDKIT": "0",
            **{variable: f"trainyard-test-{name}" for name, variable in (IMAGES | STAND_INS).items()},
        }
        v2 = shutil.which("docker-compose") is None
        self._command = ("docker", "compose") if v2 else ("docker-compose",)

    def prepare(self) -> None:
        """A copy of the tree, secrets, a wheelhouse and images."""
        for name in COPIED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "secrets", "*.pyc")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        settings = {f"TRAINYARD_SLURM_{name}": str(value) for name, value in SOON.items()}
        changed = {"services": {service: {"environment": settings} for service in ("api", "reconciler")}}
        (self.folder / "compose.test.yaml").write_text(json.dumps(changed))
        self.engine.run("docker/init", cwd=self.folder)
        with self._timed("wheelhouse"):
            fill_wheelhouse(self.engine, self.folder)
        with self._timed("base image"):
            self._environment["BASE_IMAGE"] = base = base_image(self.engine)
        for service, image in (("migrate", "service"), ("mariadb", "controller"), ("c1", "node")):
            with self._timed(f"{image} image"):
                self.compose("build", service, timeout=900)
        with self._timed("stand-ins for Postgres and nginx"):
            for name in STAND_INS:
                self._build_stand_in(name, base)
        self._certify(base)

    def _build_stand_in(self, name: str, base: str) -> None:
        here = ROOT / "tests" / "compose"
        uid = dict(line.split("=") for line in (self.folder / ".env").read_text().split())["TRAINYARD_UID"]
        arguments = ["--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"TRAINYARD_UID={uid}"]
        file = ["--file", str(here / f"{name}.Dockerfile"), "--tag", f"trainyard-test-{name}"]
        self.engine.run("docker", "build", "--quiet", *arguments, *file, here, timeout=600)

    def _certify(self, base: str) -> None:
        """A certificate for 127.0.0.1, signed by itself."""
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
        made = self.engine.run("docker", "run", "--rm", base, *command.split(), "-keyout", "/dev/stdout")
        end = made.index("-----BEGIN CERTIFICATE")
        secrets = self.folder / "docker" / "secrets"
        self.certificate.write_text(made[end:])
        key = secrets / "tls_key"
        key.touch(mode=0o600)
        key.write_text(made[:end])
        owner = (secrets / "admin_token").stat()
        os.chown(key, owner.st_uid, owner.st_gid)

    @property
    def certificate(self) -> Path:
        return self.folder / "docker" / "certificate.pem"

    def up(self, replicas: int = 1) -> None:
        """Returns when the service is ready and both nodes are idle."""
        with self._timed("up"):
            self.compose("up", "--detach", "--no-build", "--scale", f"api={replicas}", timeout=300)
            wait_until(self.ready, 120, "the service to be ready")
            wait_until(lambda: self.nodes() == ["idle", "idle"], 180, "both nodes to be idle")

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "2", timeout=180)

    def ready(self) -> bool:
        with self.client() as client:
            return client.ready()

    def nodes(self) -> list[str]:
        """The state of each, as Slurm says it; none while it says nothing."""
        try:
            return self.execute("reconciler", "sinfo", "--noheader", "--Node", "-o", "%T").split()
        except RuntimeError:
            return []

    def compose(self, *arguments: str, timeout: float = 60.0) -> str:
        """A command of Compose on the whole project, Slurm's profile included."""
        command = [*self._command, "--profile", "slurm", *arguments]
        return self.engine.run(
            "env", *(f"{name}={value}" for name, value in self._environment.items()), *command,
            timeout=timeout, cwd=self.folder,
        )  # fmt: skip

    def shell(self, line: str, timeout: float = 180.0) -> str:
        """A line of the documentation, in the tree, for this project."""
        command = line.replace("docker compose", " ".join(self._command))
        settings = (f"{name}={value}" for name, value in self._environment.items())
        return self.engine.run("env", *settings, "sh", "-ec", command, timeout=timeout, cwd=self.folder)

    def execute(self, service: str, *command: str, number: int = 0, timeout: float = 60.0) -> str:
        """A command in a container of that service."""
        return self.engine.run("docker", "exec", self.containers(service)[number], *command, timeout=timeout)

    def containers(self, service: str = "") -> list[str]:
        """Ids of those that there are, in order of their numbers."""
        label = [f"label=com.docker.compose.project={self.name}"]
        label += [f"label=com.docker.compose.service={service}"] if service else []
        chosen = [word for one in label for word in ("--filter", one)]
        lines = self.engine.run("docker", "ps", "--all", "--format", "{{.Names}} {{.ID}}", *chosen).splitlines()
        return [line.split()[1] for line in sorted(lines)]

    def inspect(self, container: str) -> dict[str, Any]:
        details: list[dict[str, Any]] = json.loads(self.engine.run("docker", "inspect", container))
        return details[0]

    def kill(self, service: str, number: int = 0) -> None:
        """SIGKILL to its first process, from outside, as the kernel does; returns when another has taken its place.

        `docker kill` would not do: the engine takes it for a wish that it stay away.
        """
        container = self.containers(service)[number]
        before = self.inspect(container)["State"]["Pid"]
        os.kill(before, signal.SIGKILL)

        def again() -> bool:
            state = self.inspect(container)["State"]
            return state["Running"] and state["Pid"] not in (0, before)

        wait_until(again, 60, f"{service} to be started again")

    def client(self, number: int = 0) -> Client:
        """Of one replica of the API, as its administrator."""
        ports = self.inspect(self.containers("api")[number])["NetworkSettings"]["Ports"]["8470/tcp"]
        return Client(f"http://127.0.0.1:{ports[0]['HostPort'] if ports else 1}", self.token)

    @property
    def token(self) -> str:
        return (self.folder / "docker" / "secrets" / "admin_token").read_text().strip()

    def image_megabytes(self, name: str) -> int:
        size = self.engine.run("docker", "image", "inspect", "--format", "{{.Size}}", f"trainyard-test-{name}")
        return int(size) // 1_000_000

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - began


def fill_wheelhouse(engine: Engine, folder: Path) -> None:
    """The containers may reach no index; whatever this machine's pip reaches, they have as files."""
    house = folder / "docker" / "wheelhouse"
    if any(house.glob("*.whl")):
        return
    requirements = ["setuptools>=77", f".[service,{EXTRAS}]"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(house)]
    engine.run(*pip, "--constraint", "constraints.txt", *requirements, cwd=folder, timeout=600)


def _free_ports(count: int) -> int:
    """The first of so many in a row."""
    for first in range(20470, 30000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free ports")
