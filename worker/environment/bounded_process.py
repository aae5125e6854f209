"""Runs a short program of a user before the ranks start: its time and its output are bounded."""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MAX_LOGGED_BYTES = 1024 * 1024
_TAIL_BYTES = 4096
_CHUNK = 64 * 1024
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1
_TRUNCATED = b"\n[further output is not logged]\n"


@dataclass(frozen=True)
class Ended:
    """How the program ended."""

    returncode: int
    tail: str
    """The end of its output."""
    timed_out: bool = False
    interrupted: bool = False


def run_bounded(
    argv: Sequence[str],
    *,
    variables: Mapping[str, str],
    folder: Path,
    log: Path | None,
    seconds: float,
    pass_fds: Sequence[int] = (),
    interrupted: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run the program with no input and append its output to the log, if there is one.

    Processes that it leaves in its session are killed. The kernel kills the program if this process ends.

    Args:
        interrupted: Polled; once it returns True, the program is killed.

    Raises:
        OSError: The program cannot be executed.
    """
    path = log or Path(os.devnull)
    path.parent.mkdir(parents=True, exist_ok=True)
    process = start_bound(argv, variables, folder, pass_fds=pass_fds)
    assert process.stdout is not None
    with process.stdout as output, path.open("ab") as file:
        os.set_blocking(output.fileno(), False)
        copy = _Copy(output, file)
        deadline = time.monotonic() + seconds
        stopped = timed_out = False
        try:
            while process.poll() is None and not (stopped or timed_out):
                copy.wait(_POLL_SECONDS)
                stopped, timed_out = interrupted(), time.monotonic() > deadline
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        copy.drain()
    return Ended(process.returncode, copy.tail.decode(errors="replace").strip(), timed_out, stopped)


def start_bound(
    argv: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    *,
    stderr: int = subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in its own session. The kernel kills it when this process ends."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        argv,
        env=dict(variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        pass_fds=pass_fds,
        preexec_fn=before_exec,
    )


class _Copy:
    """Copies a pipe to a log, as far as the log's limit allows, and remembers the end."""

    def __init__(self, output: IO[bytes], file: IO[bytes]) -> None:
        self._output = output
        self._file = file
        self._left = MAX_LOGGED_BYTES
        self.tail = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(output, selectors.EVENT_READ)

    def wait(self, seconds: float) -> None:
        """Wait for output, and copy some of it."""
        if self._selector.select(seconds) and not self._read():
            # All writers have closed the pipe, although the program goes on.
            time.sleep(seconds)

    def drain(self) -> None:
        """Copy the present content of the pipe, up to a pipe's capacity."""
        for _ in range(MAX_LOGGED_BYTES // _CHUNK):
            if not self._read():
                return

    def _read(self) -> bool:
        try:
            data = os.read(self._output.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        with contextlib.suppress(OSError):
            self._file.write(data[: self._left])
            if self._left and len(data) >= self._left:
                self._file.write(_TRUNCATED)
            self._file.flush()
        self._left = max(0, self._left - len(data))
        return bool(data)
