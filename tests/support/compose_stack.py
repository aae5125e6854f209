"""The deployment of compose.yaml, started from a copy of the tree and removed after the tests."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.support.docker_engine import Engine, base_image
from tests.support.wait import wait_until
from trainyard.client import Client

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
COPIED_PATHS = (
    *("compose.yaml", "compose.tls.yaml", ".dockerignore", "pyproject.toml", "constraints.txt", "docker"),
    *("trainyard", "service", "worker", "migrations", "jobs_templates", "docs"),
)
IMAGES = {"service": "SERVICE_IMAGE", "slurm-controller": "CONTROLLER_IMAGE", "slurm-node": "NODE_IMAGE"}
FAST_CONFIRMATION = {
    "SUBMIT_TIMEOUT_SECONDS": 20,
    "CONFIRM_ABSENCE_SECONDS": 15,
    "POLL_SECONDS": 1,
    "MAX_POLL_SECONDS": 5,
}
"""Settings with which an unconfirmed submission is resolved within seconds instead of minutes."""
SUBSTITUTE_IMAGES = {"postgres": "POSTGRES_IMAGE", "nginx": "NGINX_IMAGE"}
"""Substitutes for images that cannot be pulled everywhere, built from Debian packages."""
_REPLICAS = 3


class Stack:
    """A Compose project with its own secrets, images and ports."""

    def __init__(self, engine: Engine, folder: Path, extras: str) -> None:
        """
        Args:
            extras: Those that are installed on the nodes.
        """
        self.engine = engine
        self.extras = extras
        self.folder = folder
        self.name = f"tytest{os.getpid()}"
        self.seconds: dict[str, float] = {}
        """Duration of each step."""
        first = _free_ports(_REPLICAS + 1)
        self.secure_port = first + _REPLICAS
        self._environment = {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_FILE": "compose.yaml:compose.test.yaml:compose.tls.yaml",
            "TRAINYARD_PORTS": f"{first}-{first + _REPLICAS - 1}",
            "TRAINYARD_TLS_BIND": "127.0.0.1",
            "TRAINYARD_TLS_PORT": str(self.secure_port),
            "TRAINYARD_TLS_NETWORK": f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}",
            "TRAINYARD_PUBLIC_URL": "http://api:8470",
            "WORKER_EXTRAS": extras,
            "DOCKER_BUILDKIT": "0",
            **{variable: f"trainyard-test-{name}" for name, variable in (IMAGES | SUBSTITUTE_IMAGES).items()},
        }
        v2 = shutil.which("docker-compose") is None
        self._command = ("docker", "compose") if v2 else ("docker-compose",)

    def prepare(self) -> None:
        """Copy the tree; make secrets, wheels and images."""
        for name in COPIED_PATHS:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                # A user's own secrets in docker/; service/secrets is a package.
                own = ["secrets"] if name == "docker" else []
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc", *own)
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        settings = {f"TRAINYARD_SLURM_{name}": str(value) for name, value in FAST_CONFIRMATION.items()}
        changed = {"services": {service: {"environment": settings} for service in ("api", "reconciler")}}
        (self.folder / "compose.test.yaml").write_text(json.dumps(changed))
        self.engine.run("docker/init", cwd=self.folder)
        base = self._build()
        self._write_certificate(base)

    def _build(self) -> str:
        """Make wheels and images, at the same time where one does not need the other; return the base image.

        The node begins after the controller, whose first layers are its own too.
        """
        with ThreadPoolExecutor(5) as pool:
            wheels = pool.submit(
                self._step, "wheelhouse", lambda: fill_wheelhouse(self.engine, self.folder, self.extras)
            )
            base = self._step("base image", lambda: base_image(self.engine))
            self._environment["BASE_IMAGE"] = base
            controller = pool.submit(self._build_image, "mariadb", "controller")
            service = pool.submit(self._build_image, "migrate", "service", wheels)
            node = pool.submit(self._build_image, "c1", "node", wheels, controller)
            stand_ins = [pool.submit(self._build_substitute, name, base) for name in SUBSTITUTE_IMAGES]
        for made in (controller, service, node, *stand_ins):
            made.result()
        return base

    def _build_image(self, service: str, image: str, *needed: "Future[None]") -> None:
        for one in needed:
            one.result()
        self._step(f"{image} image", lambda: self.compose("build", service, timeout=900))

    def _build_substitute(self, name: str, base: str) -> None:
        here = ROOT / "tests" / "compose"
        uid = dict(line.split("=") for line in (self.folder / ".env").read_text().split())["TRAINYARD_UID"]
        arguments = ["--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"TRAINYARD_UID={uid}"]
        file = ["--file", str(here / f"{name}.Dockerfile"), "--tag", f"trainyard-test-{name}"]
        self.engine.run("docker", "build", "--quiet", *arguments, *file, here, timeout=600)

    def _write_certificate(self, base: str) -> None:
        """Write a self-signed certificate for 127.0.0.1."""
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
        """Start everything; return when the service is ready and both nodes are idle."""
        self._step("up", lambda: self._up(replicas))

    def _up(self, replicas: int) -> None:
        self.compose("up", "--detach", "--no-build", "--scale", f"api={replicas}", timeout=300)
        try:
            wait_until(self.ready, 150, "the service to be ready")
            wait_until(lambda: self.nodes() == ["idle", "idle"], 180, "both nodes to be idle")
        except AssertionError as error:
            error.add_note(self.compose("ps", "--all") + self.compose("logs", "--no-color", "--tail", "30"))
            raise

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "2", timeout=180)

    def ready(self) -> bool:
        with self.client() as client:
            return client.ready()

    def nodes(self) -> list[str]:
        """Return the state of each node in Slurm; empty while Slurm does not respond."""
        try:
            return self.execute("reconciler", "sinfo", "--noheader", "--Node", "-o", "%T").split()
        except RuntimeError:
            return []

    def compose(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run a command of Compose on the whole project, including Slurm's profile."""
        command = [*self._command, "--profile", "slurm", *arguments]
        return self.engine.run(
            "env", *(f"{name}={value}" for name, value in self._environment.items()), *command,
            timeout=timeout, cwd=self.folder,
        )  # fmt: skip

    def shell(self, line: str, timeout: float = 180.0) -> str:
        """Run a command line of the documentation in the tree, for this project."""
        command = line.replace("docker compose", " ".join(self._command))
        settings = (f"{name}={value}" for name, value in self._environment.items())
        return self.engine.run("env", *settings, "sh", "-ec", command, timeout=timeout, cwd=self.folder)

    def execute(self, service: str, *command: str, number: int = 0, timeout: float = 60.0) -> str:
        """Run a command in a container of a service."""
        return self.engine.run("docker", "exec", self.containers(service)[number], *command, timeout=timeout)

    def containers(self, service: str = "") -> list[str]:
        """Return the ids of a service's containers, by container number."""
        label = [f"label=com.docker.compose.project={self.name}"]
        label += [f"label=com.docker.compose.service={service}"] if service else []
        chosen = [word for one in label for word in ("--filter", one)]
        lines = self.engine.run("docker", "ps", "--all", "--format", "{{.Names}} {{.ID}}", *chosen).splitlines()
        return [line.split()[1] for line in sorted(lines)]

    def inspect(self, container: str) -> dict[str, Any]:
        details: list[dict[str, Any]] = json.loads(self.engine.run("docker", "inspect", container))
        return details[0]

    def kill(self, service: str, number: int = 0) -> None:
        """Send SIGKILL to a container's first process from outside; return when the container runs again.

        `docker kill` would not do: the engine takes it for a wish that it stay away.
        """
        container = self.containers(service)[number]
        before = self.inspect(container)["State"]["Pid"]
        os.kill(before, signal.SIGKILL)

        def restarted() -> bool:
            state = self.inspect(container)["State"]
            return state["Running"] and state["Pid"] not in (0, before)

        wait_until(restarted, 60, f"{service} to be started again")

    def client(self, number: int = 0) -> Client:
        """Return an administrator's client of one replica of the API."""
        ports = self.inspect(self.containers("api")[number])["NetworkSettings"]["Ports"]["8470/tcp"]
        return Client(f"http://127.0.0.1:{ports[0]['HostPort'] if ports else 1}", self.token)

    @property
    def token(self) -> str:
        return (self.folder / "docker" / "secrets" / "admin_token").read_text().strip()

    def image_megabytes(self, name: str) -> int:
        size = self.engine.run("docker", "image", "inspect", "--format", "{{.Size}}", f"trainyard-test-{name}")
        return int(size) // 1_000_000

    def _step(self, name: str, make: Callable[[], T]) -> T:
        began = time.monotonic()
        made = make()
        self.seconds[name] = time.monotonic() - began
        return made


def fill_wheelhouse(engine: Engine, folder: Path, extras: str) -> None:
    """Download wheels on this machine, because the containers may not reach a package index."""
    wheel_folder = folder / "docker" / "wheelhouse"
    if any(wheel_folder.glob("*.whl")):
        return
    requirements = ["setuptools>=78.1.1", f".[service,{extras}]"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheel_folder)]
    engine.run(*pip, "--constraint", "constraints.txt", *requirements, cwd=folder, timeout=600)


def _free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
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
