"""Ranks as forks of one process of their node, which has imported torch already.

For each rank, torchrun starts `python -m worker`. The import of torch would take seconds; instead, this process has the
server fork the rank, and represents it towards torchrun: it passes SIGTERM on, and ends as the rank ends. If it is
killed, the server kills the rank. Without a server it becomes the rank itself.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.core.processes import FORK_SERVER, PARENT_VARIABLE, SOCKET_VARIABLE, die_with_parent, forked_name

_REQUEST_SECONDS = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def start(folder: Path, run: Callable[[str], None]) -> Path | None:
    """Fork the server from this process, which has imported what the ranks need and has started no thread of its own.

    Args:
        folder: A folder that other accounts cannot enter; the socket is made there.
        run: Runs the rank of an attempt's folder, and never returns.

    Returns:
        The path of the socket; None if there can be no server.
    """
    path, parent = folder / "ranks", os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen()
        os.close(os.pidfd_open(parent))
    except OSError:
        # The path is too long, or the kernel has no pidfd.
        listener.close()
        return None
    if os.fork():
        listener.close()
        return path
    try:
        die_with_parent(parent)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _set_name(FORK_SERVER)
        if not (_cuda_is_initialized() or has_opened_gpu()):
            Server(listener, run).serve()
    finally:
        os._exit(1)


def run_as_fork(folder: str) -> None:
    """Have the server of this node fork the rank, and end as the rank ends. Return if there is no server."""
    path = os.environ.get(SOCKET_VARIABLE)
    if path is None:
        return
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    environ = {name: value for name, value in os.environ.items() if name != SOCKET_VARIABLE}
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as replies:
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"folder": folder, "environ": environ}).encode() + b"\n")
            pid = int(replies.readline())
        except (OSError, ValueError):
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _send(pid, number))
        with contextlib.suppress(OSError):
            _file_of(Path(path).parent, os.getpid()).write_text(str(pid))
        status = replies.readline()
        # Without a status the server has ended, and the kernel has killed the rank.
        _end_as(os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL)


def represented_by(folder: Path, pid: int) -> int:
    """Return the process of the rank that a child of torchrun represents: itself, if it is no representative."""
    try:
        return int(_file_of(folder, pid).read_text())
    except (OSError, ValueError):
        return pid


def _file_of(folder: Path, representative: int) -> Path:
    return folder / f"rank-of-{representative}"


@dataclass(frozen=True)
class _Rank:
    connection: socket.socket
    pid: int
    descriptor: int
    """Becomes readable when the process ends."""


class Server:
    """Forks ranks, reports their ends, and kills a rank whose representative has ended."""

    def __init__(self, listener: socket.socket, run: Callable[[str], None]) -> None:
        self._listener = listener
        self._run = run
        self._pid = os.getpid()
        self._ranks: dict[str, _Rank] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Never returns."""
        # The forks share the memory of objects that no collection changes.
        gc.freeze()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select():
                # An earlier one may have closed its descriptor, whose number a new rank may have by now.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        try:
            with connection.makefile("rb") as requests:
                request = json.loads(requests.readline())
            folder, environ = request["folder"], request["environ"]
            number = environ["RANK"]
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        if number in self._ranks:
            # torchrun has killed its representative and starts it again.
            self._kill(number)
        try:
            pid = os.fork()
        except OSError:
            # Without memory or processes for a fork, the representative tries to become the rank itself.
            connection.close()
            return
        if not pid:
            self._become(connection, folder, environ)
        rank = self._ranks[number] = _Rank(connection, pid, os.pidfd_open(pid))
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._kill(number))
        self._selector.register(rank.descriptor, selectors.EVENT_READ, lambda: self._end(number))
        with contextlib.suppress(OSError):
            connection.sendall(f"{pid}\n".encode())

    def _become(self, connection: socket.socket, folder: str, environ: dict[str, str]) -> None:
        """Run the rank in this fork. Never returns."""
        try:
            die_with_parent(self._pid)
            self._selector.close()
            for closed in (self._listener, connection, *(rank.connection for rank in self._ranks.values())):
                closed.close()
            for rank in self._ranks.values():
                os.close(rank.descriptor)
            # The others stay ignored, as by a rank that torchrun starts, until the rank installs its handlers.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            os.environ.update(environ | {PARENT_VARIABLE: str(self._pid)})
            _set_name(forked_name(int(environ["RANK"])))
            gc.unfreeze()
            self._run(folder)
        finally:
            os._exit(1)

    def _kill(self, number: str) -> None:
        _send(self._ranks[number].pid, signal.SIGKILL)
        self._end(number)

    def _end(self, number: str) -> None:
        """Report the end of a rank, which is awaited."""
        rank = self._ranks.pop(number)
        _, status = os.waitpid(rank.pid, 0)
        self._selector.unregister(rank.connection)
        self._selector.unregister(rank.descriptor)
        os.close(rank.descriptor)
        with contextlib.suppress(OSError):
            rank.connection.sendall(f"{status}\n".encode())
        rank.connection.close()


def _cuda_is_initialized() -> bool:
    """Return whether an import has initialized CUDA, which a fork cannot use."""
    import torch

    return bool(torch.cuda._is_in_bad_fork())


def has_opened_gpu(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process has opened a GPU: an import may have called the driver without torch."""
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(("/dev/nvidia", "/dev/kfd")):
                return True
    return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _set_name(name: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _end_as(code: int) -> None:
    """End this process with an exit code, or by a signal if it is negative."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
