"""The spool of an execution: rank 0's reports, written before they are sent. Each line is a record with a checksum."""

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from trainyard.contract.wire.media import MediaReport
from trainyard.contract.wire.reports import CheckpointReport, EventsBatch, MetricsBatch, ParametersReport, SpoolKind

SpoolBody = MetricsBatch | EventsBatch | CheckpointReport | ParametersReport | MediaReport

_BODIES: dict[str, type[SpoolBody]] = {
    "metrics": MetricsBatch,
    "events": EventsBatch,
    "checkpoint": CheckpointReport,
    "parameters": ParametersReport,
    "media": MediaReport,
}
_LINE = re.compile(
    rb'\{"seq": (?P<seq>\d{1,18}), "crc": "(?P<crc>[0-9a-f]{8})", '
    rb'"kind": "(?P<kind>metrics|events|checkpoint|parameters|media)", "body": (?P<body>.*)\}'
)

RESTARTS_MARK = b'"restarts":'
"""Part of the text of each record with which curves begin again."""

PUT_ASIDE_SUFFIX = ".put_aside"
"""Suffix of the file beside a spool that lists the acknowledged records that the service has not stored."""
MAX_PUT_ASIDE = 1000
"""Maximum number of records of a spool that are listed as put aside."""
_MAX_LINE = 16 * 1024 * 1024
"""Maximum bytes of a line, so that a file without line breaks is not read into memory as a whole."""
_MAX_COMMAS = 100_000
"""A body has about as many values as commas. 16 MiB of empty lists would take seconds to parse."""


class SpoolCorruptError(ValueError):
    """A complete line does not match its checksum. The records after it are not trusted."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the spool is damaged at byte {offset}: {why}")
        self.offset = offset


@dataclass(frozen=True)
class SpoolRecord:
    """One record of the file."""

    seq: int
    kind: SpoolKind
    body_text: bytes
    """The body as JSON; `body()` reads it."""
    start: int
    """The offset of the record's line."""
    end: int
    """The offset of the byte after it."""

    def body(self) -> SpoolBody:
        """Parse the body. Raises ValueError: it is not a report of its kind, or has too many values."""
        if self.body_text.count(b",") > _MAX_COMMAS:
            raise ValueError(f"the record has more than {_MAX_COMMAS:,} values")
        return _BODIES[self.kind].model_validate_json(self.body_text)


def format_record(seq: int, kind: SpoolKind, body: SpoolBody) -> bytes:
    """Return the record's line with its newline."""
    text = body.model_dump_json().encode()
    return b'{"seq": %d, "crc": "%08x", "kind": "%s", "body": %s}\n' % (seq, zlib.crc32(text), kind.encode(), text)


def spool_number(node: int | None) -> int:
    """Return the number of a spool in `SpoolRecords`: of the tracker spool of a node, or of the ranks' spool."""
    return 0 if node is None else node + 1


def parse_spool(source: bytes | Path | BinaryIO, offset: int = 0) -> Iterator[SpoolRecord]:
    """Yield the records from `offset` on. An incomplete last line, left by a killed writer, ends them without an error.

    Args:
        source: the path of the file, the open file, or its content.
        offset: the start of a record, as `spool_acknowledged` contains it.

    Raises:
        SpoolCorruptError: a complete line is invalid; raised after the records before it.
    """
    if isinstance(source, bytes):
        yield from _records(iter(source[offset:].splitlines(keepends=True)), offset)
        return
    with source.open("rb") if isinstance(source, Path) else source as file:
        file.seek(offset)
        yield from _records(iter(partial(file.readline, _MAX_LINE), b""), offset)


def _records(lines: Iterator[bytes], offset: int) -> Iterator[SpoolRecord]:
    for line in lines:
        if not line.endswith(b"\n"):
            if len(line) == _MAX_LINE:
                raise SpoolCorruptError(offset, "a line has no end")
            return
        match = _LINE.fullmatch(line[:-1])
        if match is None:
            raise SpoolCorruptError(offset, "not a record")
        if zlib.crc32(match["body"]) != int(match["crc"], 16):
            raise SpoolCorruptError(offset, "the checksum does not match")
        start, offset = offset, offset + len(line)
        kind: SpoolKind = match["kind"].decode()  # type: ignore[assignment]  # the pattern allows no other
        yield SpoolRecord(seq=int(match["seq"]), kind=kind, body_text=match["body"], start=start, end=offset)


def read_acknowledged(path: Path) -> int:
    """Return the offset up to which the service has acknowledged records; 0 before the first acknowledgement."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def format_put_aside(starts: Iterable[int]) -> str:
    """Return the content of the file that lists the records that begin at these offsets of a spool."""
    return "".join(f"{start}\n" for start in starts)


def parse_put_aside(content: bytes) -> list[int]:
    """Return the offsets in that file, each once and in order; a line that is not a number is left out."""
    return sorted({int(line) for line in content.split(b"\n") if re.fullmatch(rb"\d{1,18}", line)})


def read_put_aside(path: Path) -> list[int]:
    """Return the offsets in that file; none if there is no such file."""
    try:
        return parse_put_aside(path.read_bytes())
    except FileNotFoundError:
        return []
