"""Reads the file that W&B's client writes for each run, `run-<id>.wandb`, while it grows.

It is a log in the format of LevelDB: blocks of 32 KiB, in them chunks with checksum (CRC-32 of kind and data), length
and kind. The records are messages of `wandb_internal.proto`, whose field numbers no version has changed.
"""

import contextlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worker.core import processes
from worker.trackers.wire_format import MalformedMessageError, content, fields, signed, text

HISTORY, SUMMARY, CONFIG, METRIC, RUN, EXIT = 2, 3, 5, 12, 17, 18
"""Fields of `Record` that are read."""
_KINDS = frozenset({HISTORY, SUMMARY, CONFIG, METRIC, RUN, EXIT})
_BEGIN = b":W&B"
_BEGIN_SIZE = 7
"""The bytes before the first chunk, which belong to the first block."""
_BLOCK = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = _CHUNKS = (1, 2, 3, 4)
_DELETED = " (deleted)"
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
"""Fields of an item of the history, the configuration or the summary."""

Document = dict[str, Any]

log = logging.getLogger(__name__)


class RunFile:
    """An open run file. It stays readable when the client has ended, and when the file is deleted."""

    def __init__(self, opened: str, path: str) -> None:
        """
        Args:
            opened: A path of this process by which it is opened.
            path: Its path as the client sees it.

        Raises:
            OSError: It cannot be opened.
        """
        self.path = path
        self.ended = False
        """Whether the end of the run was accepted."""
        self._descriptor = os.open(opened, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._accepted = _BEGIN_SIZE
        status = os.fstat(self._descriptor)
        self.identity = (status.st_dev, status.st_ino)

    def unread(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield kind, content and end of the complete records that were not accepted yet."""
        yield from self._records(self._accepted)

    def accept(self, end: int, *, ended: bool) -> None:
        """Take the records up to here as stored; `ended`: the end of the run is among them."""
        self._accepted = max(self._accepted, end)
        self.ended = self.ended or ended

    def lines(self) -> Iterator[Document]:
        """Yield the accepted history lines, from the first."""
        for kind, message, end in self._records(_BEGIN_SIZE):
            if end > self._accepted:
                return
            if kind == HISTORY:
                yield parse_history(message)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def _records(self, position: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield kind, content and end of the complete records from a position on."""
        if self._read(0, len(_BEGIN)) != _BEGIN:
            return
        while (complete := self._record(position)) is not None:
            record, position = complete
            with contextlib.suppress(MalformedMessageError):
                for kind, message in fields(record):
                    if kind in _KINDS:
                        yield kind, content(message), position

    def _record(self, position: int) -> tuple[bytes, int] | None:
        """Return the record at a position and its end; None if a part of it is missing or has a wrong checksum."""
        parts: list[bytes] = []
        while True:
            room = _BLOCK - position % _BLOCK
            if room < _CHUNK.size:
                position += room
                continue
            header = self._read(position, _CHUNK.size)
            if len(header) < _CHUNK.size:
                return None
            checksum, length, kind = _CHUNK.unpack(header)
            data = self._read(position + _CHUNK.size, length)
            # On a network filesystem, bytes that have not arrived are zeros.
            if len(data) != length or kind not in _CHUNKS or zlib.crc32(header[-1:] + data) != checksum:
                return None
            position += _CHUNK.size + length
            parts.append(data)
            if kind in (_FULL, _LAST):
                return b"".join(parts), position

    def _read(self, position: int, size: int) -> bytes:
        """Return the bytes there; none if the filesystem cannot read them now."""
        try:
            return b"" if self._closed else os.pread(self._descriptor, size, position)
        except OSError as error:
            log.debug("the run file %s cannot be read: %s", self.path, error)
            return b""


def find_run_file(run_id: str, rank: int, known: frozenset[tuple[int, int]]) -> RunFile | None:
    """Return the run's file that a descendant of this process has open, if it is not known yet.

    The client's process holds the file open for as long as the run lasts, in any folder, and also in a container.

    Args:
        known: Identities of files that were found before.
    """
    name = f"run-{run_id}.wandb"
    for pid, _ in processes.descendants(os.getpid()):
        for entry in _open_files(pid):
            # A file can be closed at any time.
            with contextlib.suppress(OSError):
                path = os.readlink(entry).removesuffix(_DELETED)
                if Path(path).name != name or processes.rank_of(pid) not in (None, rank):
                    continue
                file = RunFile(entry, path)
                if file.identity not in known:
                    return file
                file.close()
    return None


def _open_files(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def parse_history(message: bytes) -> Document:
    """Return a history record as the line that the client would send; malformed parts are left out."""
    line: Document = {}
    with contextlib.suppress(MalformedMessageError):
        for number, value in fields(message):
            if number == 1:
                _set(line, content(value))
            elif number == 2:
                line.update(("_step", signed(step)) for field, step in fields(content(value)) if field == 1)
    return line


def update_values(values: Document, message: bytes) -> None:
    """Apply a record of the configuration or the summary: set its values, and remove the keys that it removes."""
    with contextlib.suppress(MalformedMessageError):
        for number, value in fields(message):
            if number == 1:
                _set(values, content(value))
            elif number == 2:
                path, _ = _item(content(value))
                if len(path) == 1:
                    values.pop(path[0], None)


def parse_definition(message: bytes) -> Mapping[str, str]:
    """Return a metric definition in the form that `StepMetrics.parse` takes."""
    with contextlib.suppress(MalformedMessageError):
        return {str(number): text(value) for number, value in fields(message) if number in (1, 2, 4, 9)}
    return {}


def config_of_run(message: bytes) -> bytes:
    """Return the configuration within the record of a run."""
    with contextlib.suppress(MalformedMessageError):
        return b"".join(content(value) for number, value in fields(message) if number == 4)
    return b""


def _set(values: Document, item: bytes) -> None:
    path, value = _item(item)
    for part in path[:-1]:
        below = values.get(part)
        if not isinstance(below, dict):
            below = values[part] = {}
        values = below
    if path:
        values[path[-1]] = value


def _item(item: bytes) -> tuple[list[str], Any]:
    """Return the names that lead to a value, and the value, which every version writes as JSON."""
    path: list[str] = []
    value: Any = None
    for number, encoded in fields(item):
        if number in (_KEY, _NESTED_KEY):
            path.append(text(encoded))
        elif number == _VALUE_JSON:
            value = _json(text(encoded))
    return path, value


def _json(encoded: str) -> Any:
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError):
        return None
