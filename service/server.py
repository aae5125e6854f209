"""Runs the HTTP server and the background services of a process, from listening to a clean stop."""

import fcntl
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import structlog
import uvicorn

from service.core.settings import Settings
from trainyard.contract.layout import write_atomic
from trainyard.contract.local_paths import admin_token_file, service_url_file

_SWITCH_SECONDS = 0.0005
_GC_THRESHOLD = 10_000
"""New objects between two garbage collections. Python's default of 700 is fewer than a tick creates."""


_RESERVED_FILES = 256
"""Open files of the service other than connections: the database, child processes, logs and downloads."""


class StartError(Exception):
    """The service cannot start; the message explains how to fix it."""


class BackgroundService(Protocol):
    """A part that runs beside the API in threads of its own."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def tune_interpreter() -> None:
    """Shorten the time that a request's thread waits for a tick that computes; a request changes threads often."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def freeze_gc() -> None:
    """Exclude all objects that exist now from garbage collection: a full collection paused every thread for 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


def usable_connections(max_connections: int) -> int:
    """Raise the process's soft limit of open files as far as needed; return the number of connections that it allows.

    It is not raised further, because sbatch passes the soft limit on to jobs.
    """
    required = max_connections + _RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < required:
        soft = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= required:
        return max_connections
    usable = max(1, soft - _RESERVED_FILES)
    log = structlog.get_logger("service")
    log.warning("fewer connections than TRAINYARD_MAX_CONNECTIONS; raise `ulimit -n`", usable=usable, file_limit=soft)
    return usable


@contextmanager
def exclusive_lock(path: Path) -> Iterator[IO[str]]:
    """Lock a state folder: two services must not share a local queue or a SQLite file.

    Raises:
        StartError: another process holds the lock.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartError(f"another service uses {path.parent}; stop it, or set TRAINYARD_STATE_DIR") from None
        yield file


def run_server(
    config: uvicorn.Config,
    settings: Settings,
    background: Sequence[BackgroundService],
    *,
    end_streams: Callable[[], None],
) -> None:
    """Serve until a signal arrives.

    Listens before the background services start: a service that nobody can reach must not change jobs.

    Args:
        end_streams: closes the live streams, which would otherwise delay a stop.

    Raises:
        StartError: the address is in use or does not belong to this machine.
    """
    log = structlog.get_logger("service")
    server = _Server(config, end_streams)
    # The handlers are set before the first thread starts: an exception in the middle of a start would leave its threads
    # running. uvicorn raises a signal again once it has stopped; the default handler would end the process before the
    # cleanup.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    with _listening(settings) as listener:
        url_file = service_url_file(settings.state)
        write_atomic(url_file, settings.local_url + "\n")
        for service in background:
            service.start()
        log.info("serving", url=settings.service_url, backend=settings.backend, runs=str(settings.runs))
        token = settings.admin_token_file or admin_token_file(settings.state)
        log.info("dashboard", page=f"{settings.service_url}/jobs", token_file=str(token))
        try:
            server.run(sockets=[listener])
        finally:
            for service in reversed(background):
                service.stop()
            url_file.unlink(missing_ok=True)
            log.info("stopped; running jobs continue, and the next start adopts them")


class _Server(uvicorn.Server):
    """Closes the live streams before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]):
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "set TRAINYARD_PORT or TRAINYARD_HOST to another value"
        ) from None
    with listener:
        yield listener
