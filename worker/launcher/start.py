"""Starts the launcher of a node, and with it the process that becomes torchrun: both import their modules at once.

The process that becomes torchrun needs longer for its imports than the launcher does for its own and the claim. It
waits for its command, and ends without one if the launcher ends or does not need it. Nothing here imports what takes
time.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import worker
from trainyard.process_start import speed_up_imports
from worker.launcher.resource_limits import raise_soft_limits

PROGRAM = ("-m", "worker.launcher.elastic")
WAIT = "--wait"
_PR_SET_PDEATHSIG = 1


class SignalCounter:
    """Handlers that only count; the supervising loop reacts."""

    def __init__(self) -> None:
        self.stops = 0
        """SIGTERM and SIGINT."""
        self.warnings = 0
        """SIGUSR2: Slurm sends it some time before the time limit, and on some sites before a preemption."""

    @property
    def any(self) -> bool:
        return self.stops + self.warnings > 0

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR2:
            self.warnings += 1
        else:
            self.stops += 1


def run(attempt_folder: str) -> None:
    """Run one attempt on this node to its end."""
    # At once: a signal during the imports would have no effect.
    signals = SignalCounter()
    signals.install()
    speed_up_imports()
    # torchrun and the ranks inherit them.
    raise_soft_limits()
    waiting = start_waiting(attempt_folder)
    try:
        from worker.launcher import supervise

        supervise.run(attempt_folder, waiting, signals)
    finally:
        if waiting is not None:
            waiting.end()


@dataclass
class WaitingTorchrun:
    """A process that has torchrun's modules, and waits for its command."""

    process: "subprocess.Popen[bytes]"
    command: IO[bytes]
    """A file in memory, the standard input of the process."""
    begin_pipe: int
    """A byte lets it begin; its end without a byte ends the process."""
    begun: bool = False

    def begin(self, arguments: list[str], environment: Mapping[str, str], umask: int, log: Path, stdin: bytes) -> bool:
        """Let it run; return False if it cannot.

        Args:
            arguments: Its arguments, without Python's.
            environment: All of its variables.
            log: The file to which its output is appended.
            stdin: What it reads from its standard input.
        """
        values = {"arguments": arguments, "environment": dict(environment), "umask": umask, "log": str(log)}
        self.command.write(json.dumps(values).encode() + b"\n" + stdin)
        self.command.seek(0)
        if self.process.poll() is not None:
            return False
        try:
            os.write(self.begin_pipe, b"1")
        except OSError:
            return False
        self.begun = True
        self.end()
        return True

    def end(self) -> None:
        """End the process if it has not begun."""
        if self.command.closed:
            return
        self.command.close()
        os.close(self.begin_pipe)
        if not self.begun:
            self.process.kill()
            self.process.wait()


def start_waiting(attempt_folder: str) -> WaitingTorchrun | None:
    """Start the process; None if its variables must be known before its modules are imported, or it cannot start."""
    if not _can_wait(Path(attempt_folder, "launch.json")):
        return None
    reading, writing = os.pipe()
    command = os.fdopen(os.memfd_create("command"), "w+b")
    try:
        process = subprocess.Popen(
            [sys.executable, *PROGRAM, WAIT, str(reading), attempt_folder],
            env={**os.environ, **import_variables(os.environ)},
            stdin=command,
            pass_fds=(reading,),
            start_new_session=True,
            preexec_fn=before_exec(),
        )
    except OSError:
        # Torchrun is started later, and the launcher reports what is wrong.
        os.close(writing)
        command.close()
        return None
    finally:
        os.close(reading)
    return WaitingTorchrun(process, command, writing)


def _can_wait(document: Path) -> bool:
    """Return whether the launch document can be read, and the ranks are no forks: those have the libraries of this
    process, which read variables such as the number of threads."""
    try:
        return not json.loads(document.read_bytes())["spec"]["restart"].get("fork_ranks")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def become_torchrun() -> list[str]:
    """In the process that waits: return the arguments once the launcher has sent them, and take the variables, the
    umask and the output that it names. If the launcher does not need this process, end it."""
    pipe = int(sys.argv[2])
    if not os.read(pipe, 1):
        os._exit(0)
    os.close(pipe)
    values: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    os.environ.clear()
    os.environ.update(values["environment"])
    os.umask(values["umask"])
    with open(values["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    arguments: list[str] = values["arguments"]
    return arguments


def import_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which torchrun and the ranks import the modules of this worker."""
    # Do not import from the current folder, which may be anything.
    variables = {"PYTHONSAFEPATH": "1"}
    source = str(Path(worker.__file__).parents[1])
    if "site-packages" not in source:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [base.get("PYTHONPATH"), source]))
    return variables


def before_exec() -> Callable[[], None]:
    """Return what torchrun's process calls before it runs: it ends with this process, and ignores warning signals."""
    libc, launcher = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        # A warning signal is meant for the ranks. torchrun would end them at once; if it ignores the signal, it waits
        # until they have saved. The ranks inherit the disposition until they install their own handlers.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)

    return prepare
