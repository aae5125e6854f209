"""Commands that start a program on the nodes of a running job, with Slurm or on this machine, and the check whether it
can start here."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trainyard.contract.wire.job_access import AccessKind, AccessResource

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "TERM", "COLORTERM", "LANG", "LC_ALL", "TZ")
_OF_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Variables that srun itself reads. Further variables of an allocation in which this command runs would name another
job."""
_BACKSTOP_SECONDS = 30.0
"""The nodes end a command that takes too long themselves; after this time more, srun is ended."""
_END_SECONDS = 15.0
_MAX_LINE = 8192


def node_arguments(
    access: AccessResource, kind: AccessKind, rank: int | None, argv: Sequence[str] = (), timeout: float | None = None
) -> list[str]:
    """Return the whole command: srun with its options, unless the job is local, and the program with its arguments."""
    program = [*access.command, kind]
    program += [] if rank is None else ["--rank", str(rank)]
    program += [] if timeout is None else ["--timeout", f"{timeout:g}"]
    program += ["--", *argv] if kind == "exec" else []
    return [*_srun(access, kind, rank), *program] if access.scheduler == "slurm" else program


def _srun(access: AccessResource, kind: AccessKind, rank: int | None) -> list[str]:
    """Return srun with its options: a step beside the job's own steps, with all resources of the job on the nodes."""
    nodes = len(access.nodes)
    options = ["srun", f"--jobid={access.scheduler_id}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}"]
    options += ["--ntasks-per-node=1", *([] if rank is None else [f"--nodelist={access.nodes[0].name}"])]
    options += ["--mem=0", "--cpu-bind=none", "--mpi=none", "--propagate=NONE", "--export=ALL", "--chdir=/"]
    # Else a site's defaults would end the step some time after its first task.
    options += ["--pty"] if kind == "shell" else ["--input=none", "--wait=0", "--kill-on-bad-exit=0"]
    return [*options, f"--job-name=trainyard-{kind}", "--quiet"]


def reason_for_elsewhere(
    access: AccessResource, uid: int, *, has_srun: bool, host: str, is_readable: Callable[[Path], bool]
) -> str | None:
    """Return why the program cannot start here, and where the line can be typed; None if it can start.

    Args:
        uid: The uid of this process.
        has_srun: Whether this machine has Slurm's commands.
        host: The name of this machine.
        is_readable: Whether this process can read a file.
    """
    reasons, places = [], []
    if access.scheduler == "slurm" and not has_srun:
        reasons.append("this machine has no `srun`")
        places.append("on a login node of the cluster")
    if access.scheduler != "slurm" and not (
        access.nodes[0].name == host and (uid != access.uid or is_readable(Path(access.folder, "launch.json")))
    ):
        reasons.append(f"the job runs on {access.nodes[0].name}, on the service's machine")
        places.append("there")
    if uid != access.uid:
        reasons.append(f"the job runs as the Unix account `{access.account}`, and you are `{account_name(uid)}`")
        places.append(f"as `{access.account}`")
    return f"{', and '.join(reasons)}; type the printed line {' '.join(places)}" if reasons else None


def account_name(uid: int) -> str:
    """Return the name of an account, or its uid if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def reason_here(access: AccessResource) -> str | None:
    """Return why the program cannot start on this machine by this account; None if it can."""
    return reason_for_elsewhere(
        access,
        os.getuid(),
        has_srun=shutil.which("srun") is not None,
        host=socket.gethostname(),
        is_readable=lambda path: os.access(path, os.R_OK),
    )


def passed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for srun or the program: the token and all other settings of this shell stay here."""
    return {name: environ[name] for name in (*_PASSED_ON, *_OF_SLURM) if name in environ}


def run_on_terminal(arguments: Sequence[str]) -> int:
    """Run a command with the terminal of this process, and return its exit status.

    Raises:
        OSError: The command cannot be executed.
    """
    saved = _terminal_settings()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(arguments, env=passed_environment(os.environ), preexec_fn=_handle_interrupts)
        return exit_status(process.wait())
    finally:
        signal.signal(signal.SIGINT, handler)
        if saved is not None:
            # A program that is killed leaves the terminal as it was for the program.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, saved)


def _handle_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _terminal_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        return None


def run_and_read(arguments: Sequence[str], receive: Callable[[bytes], None], timeout: float | None) -> int:
    """Run a command without input, pass each line that it prints to `receive`, and return its exit status.

    If this process is interrupted or told to end, the command is ended first.

    Args:
        timeout: The seconds after which the nodes end the command. None: never.

    Raises:
        OSError: The command cannot be executed.
        KeyboardInterrupt: This process was interrupted or told to end.
    """
    with (
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        # In a session of its own, so that an interrupt of the terminal does not reach it before this process.
        subprocess.Popen(
            arguments,
            env=passed_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        backstop = threading.Timer((timeout or 0) + _BACKSTOP_SECONDS, process.terminate)
        backstop.daemon = True
        try:
            if timeout is not None:
                backstop.start()
            while line := process.stdout.readline(_MAX_LINE):
                receive(line)
            return exit_status(process.wait())
        finally:
            backstop.cancel()
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_status(returncode: int) -> int:
    """Return the exit status that a shell shows for it."""
    return returncode if returncode >= 0 else 128 - returncode
