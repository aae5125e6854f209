"""Ships the ranks' logs to the service as raw bytes, and limits the size of the files."""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.wire.reports import MAX_LOG_CHUNK
from worker.core.log_setup import file_handler
from worker.launcher.nodes import AttemptContext
from worker.reporting.service_client import (
    TOO_LARGE,
    Backoff,
    FailedError,
    ForeignAnswerError,
    RefusedError,
    RejectedError,
    ServiceClient,
    ServiceError,
    UnavailableError,
)

log = logging.getLogger(__name__)

_MAX_FAILURES = 8
"""Consecutive internal errors of the service, or responses of a proxy, after which a stream is no longer sent."""
_MIN_CHUNK = 4096
_PUNCH_HOLE_KEEP_SIZE = 0x03
_BLOCK = 4096


@dataclass
class LogStream:
    """A growing log file, and the offset up to which it was sent."""

    name: str
    """`launch`, or the number of a rank."""
    path: Path
    offset: int = 0
    chunk_bytes: int = MAX_LOG_CHUNK
    """Bytes to send at once; below the service's limit if a proxy has a lower limit."""
    failures: int = 0
    """Consecutive internal errors of the service, or responses of a proxy."""
    refused: bool = False
    """Whether the service cannot store the log. It reads the rest from the file after the attempt."""


class LogShipper:
    """A thread that tails the streams and posts new bytes. A stream that cannot be stored does not hold up others."""

    def __init__(
        self,
        streams: list[LogStream],
        connect: Callable[[], ServiceClient],
        *,
        interval: float = 1.0,
        limit: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._streams = streams
        self._connect = connect
        self._interval = interval
        self._caps = LogCaps(limit) if limit else None
        self._backoff = backoff or Backoff()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, stream: LogStream) -> None:
        """Add a stream unless it is shipped already."""
        if all(stream.name != known.name for known in self._streams):
            self._streams.append(stream)

    def close(self, timeout: float) -> None:
        """Send the rest for about `timeout` seconds at most, and stop."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout + 1.0)

    def _run(self) -> None:
        client = self._connect()
        try:
            while True:
                last = self._closing.is_set()
                for stream in [stream for stream in self._streams if not stream.refused]:
                    if self._caps:
                        self._caps.apply(stream.path)
                    self._ship(client, stream)
                if last:
                    return
                self._closing.wait(self._interval)
        except RefusedError as error:
            log.warning("the service refuses logs, and none are sent any more: %s", error)
        except Exception:
            log.exception("sending logs failed; they stay in the attempt's folder")
        finally:
            client.close()

    def _ship(self, client: ServiceClient, stream: LogStream) -> None:
        while not stream.refused and time.monotonic() < self._deadline and (chunk := _read(stream)):
            try:
                response = client.post("logs", chunk, params={"rank": stream.name, "offset": stream.offset})
                stream.offset = int(response.get("next_offset", stream.offset + len(chunk)))
                stream.failures = 0
                self._backoff.reset()
            except UnavailableError as error:
                failed = isinstance(error, FailedError | ForeignAnswerError)
                stream.failures += failed
                if isinstance(error, ForeignAnswerError) and error.status == TOO_LARGE:
                    stream.chunk_bytes = max(_MIN_CHUNK, stream.chunk_bytes // 2)
                # Wait for a proxy that refuses everything.
                if failed and stream.failures % _MAX_FAILURES == 0 and _concerns_stream(client, error):
                    _refuse(stream, error)
                    return
                pause = self._backoff.pause(error.retry_after)
                if self._closing.wait(pause):
                    time.sleep(min(0.2, pause))
                elif failed:
                    return
            except RejectedError as error:
                _refuse(stream, error)
            except RefusedError as error:
                if error.status != 409:
                    raise
                offset = error.document.get("next_offset")
                if not isinstance(offset, int) or offset == stream.offset:
                    _refuse(stream, error)
                else:
                    stream.offset = offset


def _concerns_stream(client: ServiceClient, error: UnavailableError) -> bool:
    return isinstance(error, FailedError) or client.is_reached()


def _refuse(stream: LogStream, error: ServiceError) -> None:
    log.error("the service cannot store the log %s, which is not sent any more: %s", stream.name, error)
    stream.refused = True


def _read(stream: LogStream) -> bytes:
    try:
        with stream.path.open("rb") as file:
            file.seek(stream.offset)
            return file.read(stream.chunk_bytes)
    except FileNotFoundError:
        return b""


class LogCaps:
    """Limits log files by giving the blocks of their beginning back to the filesystem. A file keeps its length and its
    offsets, since ranks append to it and the service counts by them. Filesystems that cannot do so keep all blocks."""

    def __init__(self, limit: int) -> None:
        """`limit` is in bytes per file."""
        self._limit = limit
        self._dropped: dict[Path, int] = {}
        self._able = hasattr(ctypes.CDLL(None), "fallocate")

    def apply(self, path: Path) -> None:
        """Drop the beginning of a file above the limit, so that half the limit remains."""
        try:
            size = path.stat().st_size
            dropped = self._dropped.get(path, 0)
            if not self._able or size - dropped <= self._limit:
                return
            end = (size - self._limit // 2) // _BLOCK * _BLOCK
            _punch_hole(path, end)
            self._dropped[path] = end
            log.info("%s: its first %d bytes were dropped", path.name, end)
        except FileNotFoundError:
            return  # its rank has not started
        except OSError as error:
            self._able = False
            log.warning("log files cannot be limited: %s", error)


def _punch_hole(path: Path, end: int) -> None:
    mark = f"\n[trainyard: the first {end} bytes of this log were dropped]\n".encode()
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(handle, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(end)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        # The note replaces the last of the dropped bytes.
        os.pwrite(handle, mark, end - len(mark))
    finally:
        os.close(handle)


def log_streams(context: AttemptContext) -> list[LogStream]:
    """Return the logs that are shipped from the start on. With several nodes, each rendezvous decides on the ranks."""
    layout, launch, node = context.layout, context.launch, context.node
    ranks = range(launch.processes_per_node if node.count == 1 else 0)
    first = [LogStream("launch", layout.launch_log)] if node.is_first else []
    return [*first, *(LogStream(str(rank), layout.rank_log(rank)) for rank in ranks)]


def ship_launch_log(context: AttemptContext, seconds: float) -> None:
    """Send the log of an attempt whose ranks do not start."""
    streams = [LogStream("launch", context.layout.launch_log)]
    shipper = LogShipper(streams, context.connect, limit=context.launch.log_bytes)
    shipper.start()
    shipper.close(seconds)


def log_start(context: AttemptContext) -> None:
    """Write the launcher's log to the node's file from here on."""
    path = context.layout.node_log(context.node.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("worker").addHandler(file_handler(path))
    log.info("attempt %d of job %s", context.launch.attempt, context.launch.job_id)
