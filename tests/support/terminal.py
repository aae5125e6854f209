"""The command line in a process of its own, and programs on a pseudo-terminal."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_SECONDS = 60.0


def trainyard(*arguments: str) -> list[str]:
    """Return the command that runs the command line with these arguments."""
    return [sys.executable, "-m", "trainyard", *arguments]


def run_trainyard(environ: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = trainyard(*arguments)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


class Terminal:
    """The other side of the terminal."""

    def __init__(self, master: int, process: "subprocess.Popen[bytes]") -> None:
        self._master = master
        self.process = process
        self.output = ""
        """All output so far."""

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, seconds: float = _SECONDS) -> str:
        """Return all output after the last call, once it contains the text."""
        start, limit = len(self.output), time.monotonic() + seconds
        while text not in self.output[start:]:
            left = limit - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{text!r} is not in the output:\n{self.output}")
        return self.output[start:]

    def wait(self, seconds: float = _SECONDS) -> int:
        """Return the exit status of the program."""
        limit = time.monotonic() + seconds
        while self._read(max(0.0, min(0.1, limit - time.monotonic()))) or self.process.poll() is None:
            assert time.monotonic() < limit, f"the program has not ended:\n{self.output}"
        return self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.output += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[Terminal]:
    """Start a program as the leader of the terminal's session; it is killed at the end."""
    master, slave = os.openpty()
    # A narrow terminal would break lines.
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 500, 0, 0))

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        arguments,
        env=dict(environ),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
