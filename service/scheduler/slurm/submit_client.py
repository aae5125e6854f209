"""The service's side of the submit server: starts it, sends requests and ends submitters that take too long."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from service.scheduler.slurm.commands import clean_environment
from service.scheduler.slurm.submit_server import MESSAGE

_MODULE = "service.scheduler.slurm.submit_server"
_START_SECONDS = 30.0
"""Time for a submitter to begin, the start of the server included; a server that takes longer is replaced."""
_MAX_REQUESTS = 1000
"""After this many requests a new server is started, so that leaks do not accumulate."""


@dataclass(eq=False)
class _Server:
    """A running submit server."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    requests: int = 0

    @classmethod
    def start(cls) -> "_Server":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            root = str(Path(__file__).resolve().parents[3])
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=clean_environment() | {"PYTHONPATH": root, "PYTHONSAFEPATH": "1"},
                cwd="/",
                pass_fds=[theirs.fileno()],
                # A Ctrl-C must not reach it.
                start_new_session=True,
            )
        ours.settimeout(_START_SECONDS)
        return cls(process, ours)

    def end(self) -> None:
        """Kill the server; submitters that run continue."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


class SubmitServerClient:
    """Runs submitters, which are forked from a server that starts with the first submission and ends with the
    service."""

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._lock = threading.Lock()
        """Guards `_server`, since submissions run in several threads."""

    def run(self, request: Mapping[str, Any], log: BinaryIO, seconds: float) -> bytes:
        """Run a submitter to its end and return its result.

        Args:
            log: Standard output and error of the submitter.
            seconds: Time limit, after which the submitter and its sbatch are killed.

        Raises:
            OSError: The submitter could not be started, or took too long.
            EOFError: It ended before it began.
        """
        deadline = time.monotonic() + seconds
        message = json.dumps({**request, "deadline": deadline}).encode()
        try:
            connection, session = self._begin(message, log, deadline)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            # The server had ended: nothing was submitted.
            connection, session = self._begin(message, log, deadline)
        with connection:
            try:
                return _read(connection, deadline)
            except BaseException:
                # A submission that timed out must not succeed minutes later.
                with suppress(ProcessLookupError):
                    os.killpg(session, signal.SIGKILL)
                raise

    def _begin(self, message: bytes, log: BinaryIO, deadline: float) -> tuple[socket.socket, int]:
        """Return the connection to a submitter that has read its request, and its session.

        Raises:
            EOFError, BrokenPipeError, ConnectionResetError: The server had ended; the submitter did not begin.
            TimeoutError: It did not begin in time, and never will.
        """
        server = self._acquire()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(server.channel, [MESSAGE], [theirs.fileno(), log.fileno()])
            ours.settimeout(_START_SECONDS)
            ours.sendall(message)
            ours.shutdown(socket.SHUT_WR)
            line = _read(ours, min(deadline, time.monotonic() + _START_SECONDS), line=True)
            if not line:
                raise EOFError("the submitter ended before it began")
            return ours, int(line)
        except BaseException:
            ours.close()
            self._discard(server)
            raise

    def _acquire(self) -> _Server:
        """Return the server; a new server if there is none, or after its maximum number of requests."""
        with self._lock:
            if self._server is not None and self._server.requests >= _MAX_REQUESTS:
                self._server.end()
                self._server = None
            if self._server is None:
                self._server = _Server.start()
            self._server.requests += 1
            return self._server

    def _discard(self, server: _Server) -> None:
        with self._lock:
            if self._server is server:
                self._server = None
                server.end()


def _read(connection: socket.socket, deadline: float, *, line: bool = False) -> bytes:
    """Read to the end, or one short line."""
    data = bytearray()
    while not (line and data.endswith(b"\n")):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(1 if line else 65536)
        if not chunk:
            break
        data += chunk
    return bytes(data)
