"""The demo: start a service, submit a distributed job through the REST API, watch it and print its results."""

import ctypes
import fcntl
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from trainyard.cli.metrics import print_plots
from trainyard.cli.output import format_number, print_error, print_line, sanitize
from trainyard.cli.watch import follow, make_view, print_outcome
from trainyard.client import Client, TrainyardError
from trainyard.contract.local_paths import DEFAULT_HOST, DEFAULT_PORT, admin_token_file, service_url_file
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.jobs import JobResource

PRESET = "digits_ddp"
START_SECONDS = 180.0
"""A first start compiles all modules, and on a busy machine takes more than a minute."""
_NEWS_SECONDS = 15.0
"""Seconds between two lines about the start."""
STOP_SECONDS = 15.0
LOG_LINES = 40
_PR_SET_PDEATHSIG = 1
_PORTS = range(30_000, 32_768)

NEXT_STEPS = """
Next steps
  make serve                                           run the service permanently; in another shell:
  .venv/bin/trainyard templates                        the presets
  .venv/bin/trainyard submit gpt_stdlib --watch        a byte-level GPT on real text
  .venv/bin/trainyard submit digits_ddp --set epochs=3 --set optimizer.lr=1e-3
  .venv/bin/trainyard list                             then: show, logs -f, metrics, checkpoints, cancel
"""

PAGE = """\
Web page of this job: {root}/jobs/{job}
  to serve it: TRAINYARD_STATE_DIR={state} TRAINYARD_RUNS_DIR={runs} make serve
  sign in with the token in {state}/admin_token
"""
DASHBOARD = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"


class DemoError(Exception):
    """The demo cannot continue."""


class FolderInUseError(Exception):
    """Another process uses the folder of the demo."""


class ServiceProcess:
    """A service in a child process; its database, runs and log are in the same folder."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """Take settings of the service by name, without the prefix TRAINYARD_."""
        self._settings = {f"TRAINYARD_{name.upper()}": value for name, value in settings.items()}
        self.port = int(settings.get("port") or free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "service.log"
        self.state_dir = folder / "state"
        self.runs_dir = folder / "runs"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.runs_dir.mkdir(exist_ok=True)
        service_url_file(self.state_dir).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C interrupts the demo, which then stops the service gracefully.
                start_new_session=True,
                preexec_fn=_set_parent_death_signal(os.getpid()),
            )

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "service", "serve"]

    def client(self) -> Client:
        """Wait until the service is ready, with occasional messages, and return a client with its admin token.

        Raises:
            DemoError: the service ended, or was not ready in time.
        """
        assert self._process is not None
        print_line(f"waiting for the service to be ready, up to {START_SECONDS:g} s; its log is {self.log}")
        started = printed = time.monotonic()
        while (now := time.monotonic()) < started + START_SECONDS:
            if now >= printed + _NEWS_SECONDS:
                print_line(f"still waiting after {now - started:.0f} s")
                printed = now
            if self._process.poll() is not None:
                raise DemoError(f"the service ended with exit code {self._process.returncode}")
            with Client(self.url, "none") as probe:
                # Without its file another program would answer at this port.
                if service_url_file(self.state_dir).exists() and probe.ready():
                    token = admin_token_file(self.state_dir).read_text().strip()
                    return Client(self.url, token)
            time.sleep(0.2)
        raise DemoError(f"the service was not ready after {START_SECONDS:g} seconds")

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Kill the service, as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        if not self.log.is_file():
            return ""
        return "\n".join(sanitize(self.log.read_text(errors="replace")).splitlines()[-LOG_LINES:])

    def _environment(self) -> dict[str, str]:
        """Return the caller's environment without the settings of other services; Slurm variables only for Slurm."""
        slurm = self._settings.get("TRAINYARD_BACKEND") == "slurm"
        others = ("TRAINYARD_", "SLURM_", "SBATCH_", "SQUEUE_", "SACCT_")
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(others) or (slurm and key.startswith("SLURM_"))
        }
        return inherited | {
            "TRAINYARD_HOST": "127.0.0.1",
            "TRAINYARD_PORT": str(self.port),
            "TRAINYARD_STATE_DIR": str(self.state_dir),
            "TRAINYARD_RUNS_DIR": str(self.runs_dir),
            "TRAINYARD_BACKEND": "local",
            **self._settings,
        }


def main() -> int:
    """Run the demo and return its exit code."""
    folder = Path(".trainyard/demo").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _own(folder):
            return demonstrate(ServiceProcess(folder))
    except FolderInUseError as error:
        print_error(str(error))
        return 1


def demonstrate(service: ServiceProcess) -> int:
    """Run the demo with a service that is not started yet, and return its exit code."""
    folder = service.log.parent
    try:
        with _stop_service(service):
            print_line(f"starting the service: {service.url}, SQLite and runs in {folder}")
            service.start()
            with service.client() as client:
                job = run(client)
                state, runs = (shlex.quote(str(path)) for path in (service.state_dir, service.runs_dir))
                print(PAGE.format(state=state, runs=runs, root=DASHBOARD, job=job.id))
                return 0
    except KeyboardInterrupt:
        print_error("interrupted; the job and the service are stopped")
        return 130
    except (DemoError, TrainyardError, OSError) as error:
        print_error(f"the demo failed: {error}")
        print_error(f"end of the service's log ({service.log}):")
        print(service.log_tail(), file=sys.stderr)
        return 1


def run(client: Client) -> JobResource:
    """Submit a job, follow it to its end, and print its results. Raises DemoError: the job did not succeed."""
    job = client.submit(client.template(PRESET).spec).resource
    print_line(f"submitted the preset {PRESET}: job {job.id}")
    try:
        ended = follow(client, job, make_view(job))
    except BaseException:
        _end(client, job)
        raise
    if ended.status != "succeeded":
        print_outcome(ended)
        _show_log(client, ended)
        raise DemoError(f"job {ended.id} ended as {ended.status}")
    show_results(client, ended)
    print(NEXT_STEPS)
    return ended


def show_results(client: Client, job: JobResource) -> None:
    """Print the curves and the checkpoints of an ended job."""
    print()
    print_plots([client.metrics(job.id, ["train/loss", "eval/accuracy"], max_points=400)])
    latest = ", ".join(f"{key} {format_number(value)}" for key, value in sorted(job.metrics.items()) if "eval/" in key)
    print()
    print_line(f"succeeded: {job.progress.step if job.progress else 0} steps, {latest or 'no evaluation'}")
    for checkpoint in client.checkpoints(job.id):
        print_line(f"checkpoint of step {checkpoint.step}, {format_size(checkpoint.size_bytes)}: {checkpoint.path}")


def _end(client: Client, job: JobResource) -> None:
    """Cancel the job and wait for its end, because a job outlives its service by design."""
    for step in (client.cancel, partial(client.wait, timeout=STOP_SECONDS)):
        with suppress(TrainyardError):
            step(job.id)


def _show_log(client: Client, job: JobResource) -> None:
    with suppress(TrainyardError):
        print(sanitize(client.logs(job.id, rank=0, tail=LOG_LINES).text), file=sys.stderr)


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Empty a folder for this demo alone. Raises FolderInUseError: another demo or a service uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        # The second is the lock of a service that shows the jobs of the last demo.
        for path, user in ((folder.with_name("demo.lock"), "demo"), (folder / "state" / "lock", "service")):
            if not path.parent.exists():
                continue
            file = locks.enter_context(path.open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FolderInUseError(f"another {user} uses {folder}; stop it first") from None
        shutil.rmtree(folder, ignore_errors=True)
        yield


@contextmanager
def _stop_service(service: ServiceProcess) -> Iterator[None]:
    try:
        yield
    finally:
        service.stop()


def _set_parent_death_signal(parent: int) -> Callable[[], None] | None:
    """Return a function for the child before exec: it gets SIGTERM when its parent ends."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free at this time.

    It is below the range from which Linux takes ports of clients, which could use it before the caller does.
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise DemoError(f"100 ports from {_PORTS.start} to {_PORTS.stop - 1} are in use")


if __name__ == "__main__":
    sys.exit(main())
