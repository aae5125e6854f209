"""Runs one command to its end and prints its output and end as records, for `trainyard exec`."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Literal

from trainyard.contract.wire.job_access import format_end, format_output
from worker.environment.bounded_process import start_bound

_CHUNK = 64 * 1024
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 3.0
"""Seconds between SIGTERM and SIGKILL."""
_DRAIN_SECONDS = 1.0
_TIMED_OUT, _NOT_EXECUTABLE, _NOT_FOUND = 124, 126, 127
"""The exit codes of `timeout` and of shells."""


@dataclass
class Relay:
    """Passes on the output of a command on this node."""

    node: str
    out: BinaryIO
    _interrupted: bool = field(default=False, init=False)

    def run(self, argv: Sequence[str], variables: Mapping[str, str], folder: Path, seconds: float | None) -> None:
        """Run the command without input. The command is ended if a signal ends this process or nobody reads the output.

        Args:
            seconds: How long it may take. None: without limit.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._interrupt)
        try:
            process = start_bound(argv, variables, folder, stderr=subprocess.PIPE)
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            self._send(format_end(self.node, code, message=f"{argv[0]} cannot be executed: {error.strerror}"))
            return
        timed_out = self._follow(process, seconds)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        self._send(format_end(self.node, _TIMED_OUT if timed_out else code, timed_out=timed_out))

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True

    def _follow(self, process: "subprocess.Popen[bytes]", seconds: float | None) -> bool:
        """Pass on the output until the command has ended; return whether it took too long."""
        selector, deadline, timed_out = selectors.DefaultSelector(), _after(seconds), False
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, name)
        killed_at: float | None = None
        try:
            while process.poll() is None:
                timed_out = timed_out or time.monotonic() > deadline
                if (timed_out or self._interrupted) and killed_at is None:
                    killed_at = time.monotonic() + _GRACE_SECONDS
                    _signal(process, signal.SIGTERM)
                if killed_at is not None and time.monotonic() > killed_at:
                    break
                self._pass_on(selector, _POLL_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()
        end = _after(_DRAIN_SECONDS)
        while selector.get_map() and time.monotonic() < end and self._pass_on(selector, 0.0):
            pass
        return timed_out

    def _pass_on(self, selector: selectors.BaseSelector, seconds: float) -> bool:
        """Wait for output and send it; return whether there was any."""
        if not selector.get_map():
            time.sleep(seconds)
        ready = selector.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, _CHUNK)
            if not data:
                selector.unregister(key.fileobj)
            stream: Literal["stdout", "stderr"] = key.data
            for line in format_output(self.node, stream, data):
                self._send(line)
        return bool(ready)

    def _send(self, line: bytes) -> None:
        try:
            self.out.write(line)
            self.out.flush()
        except OSError:
            # The client has gone.
            self._interrupted = True


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _after(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def standard_output() -> BinaryIO:
    """Return the standard output for records; Python's other output goes to the standard error."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out
