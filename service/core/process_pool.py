"""A few processes for computations that may take long, each with a deadline after which it is killed.

`concurrent.futures` cannot end a call that is running, and a thread would compete with every request for the
interpreter. The processes start at the first call.
"""

import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from service.core.errors import InvalidRequestError, TooManyRequestsError
from service.core.thread_slots import SlotsTakenError, ThreadSlots

T = TypeVar("T")

_SECONDS = 5.0
_START_SECONDS = 60.0
"""Time for a new process to import its modules, which does not count against a call."""
_WAIT_SECONDS = 2.0
"""How long a call waits for a process that is busy."""
_HEADER = 8
"""Bytes of a message's length."""


class ProcessPool:
    """Runs top-level functions of this package in other processes."""

    def __init__(self, size: int = 2, seconds: float = _SECONDS, wait_seconds: float = _WAIT_SECONDS):
        """
        Args:
            size: Number of calls that run at once.
            seconds: Time limit of a call.
            wait_seconds: How long a call waits for a process.
        """
        self._seconds = seconds
        self._slots = ThreadSlots(each=1, total=size, seconds=_START_SECONDS + seconds, wait_seconds=wait_seconds)
        self._idle: list[_Process] = []
        self._lock = threading.Lock()

    def run(self, owner: str, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of the function.

        Args:
            owner: The user who requested the result; one call of each user runs at a time.

        Raises:
            InvalidRequestError: The function did not return within the time limit, or its process failed.
            TooManyRequestsError: All processes are busy, or a call of this user is running.
        """
        with self._slot(owner):
            process = self._acquire_process()
            try:
                done, result = process.call((function, arguments), self._seconds)
            except (TimeoutError, OSError, EOFError):
                process.kill()
                message = f"this request takes more than {self._seconds:g} s to check; split it"
                raise InvalidRequestError(message, code="too_expensive") from None
            except BaseException:
                process.kill()
                raise
            with self._lock:
                self._idle.append(process)
        if not done:
            raise result
        value: T = result
        return value

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            processes, self._idle = self._idle, []
        for process in processes:
            process.kill()

    @contextmanager
    def _slot(self, owner: str) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._slots.hold(owner))
            except SlotsTakenError as error:
                message = "large requests of other users are being checked; try again later"
                if error.is_own:
                    message = "another large request of yours is being checked; wait for its response"
                raise TooManyRequestsError(message) from None
            yield

    def _acquire_process(self) -> "_Process":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Process()


class _Process:
    """A child process that reads calls from its standard input and writes results to its standard output."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._child = subprocess.Popen(
            [sys.executable, "-m", "service.core.process_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._read(time.monotonic() + _START_SECONDS)

    def call(self, request: Any, seconds: float) -> tuple[bool, Any]:
        """Return whether the call succeeded, and its result or exception.

        Raises:
            TimeoutError: The call took longer.
            OSError: The process has ended.
        """
        assert self._child.stdin is not None
        _write(self._child.stdin.fileno(), request)
        answer: tuple[bool, Any] = self._read(time.monotonic() + seconds)
        return answer

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self, deadline: float) -> Any:
        length = int.from_bytes(self._read_bytes(_HEADER, deadline), "little")
        return pickle.loads(self._read_bytes(length, deadline))  # noqa: S301 (written by our own process)

    def _read_bytes(self, count: int, deadline: float) -> bytes:
        assert self._child.stdout is not None
        handle, data = self._child.stdout.fileno(), bytearray()
        while len(data) < count:
            ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            chunk = os.read(handle, count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)


def _write(handle: int, value: Any) -> None:
    data = pickle.dumps(value)
    data = len(data).to_bytes(_HEADER, "little") + data
    while data:
        data = data[os.write(handle, data) :]


def _serve() -> None:
    """Run calls until the service closes the pipe. The output of a call goes to the service's log."""
    answers = os.dup(1)
    os.dup2(2, 1)
    _write(answers, "ready")
    while header := sys.stdin.buffer.read(_HEADER):
        request = sys.stdin.buffer.read(int.from_bytes(header, "little"))
        try:
            function, arguments = pickle.loads(request)  # noqa: S301 (written by the service)
            _write(answers, (True, function(*arguments)))
        except Exception as error:
            _write(answers, (False, RuntimeError(f"{type(error).__name__}: {error}")))


if __name__ == "__main__":
    _serve()
