"""Search in a whole log: a request reads it for a limited time, and the next request continues."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from service.db.engine import Database
from service.logs.patterns import LinePattern
from service.logs.repository import LogRepository
from service.logs.service import find_log
from trainyard.contract.wire.logs import LogLine, LogLines

MAX_SECONDS = 1.0
"""Time that a request searches. The next request continues where it stopped."""
MAX_LINE = 2000
"""Bytes of a line in a response."""
MAX_BLOCK = 64 * 1024
"""Bytes of a block, so that a search can look at the clock; also the longest line that is matched as a whole."""


class Block(NamedTuple):
    """Whole lines of a log and the offset of the first."""

    offset: int
    data: bytes


def blocks(chunks: Iterable[tuple[int, bytes]], offset: int) -> Iterator[Block]:
    """Yield the lines from `offset` on.

    Args:
        chunks: Offset and bytes of each chunk, in order, from the chunk with `offset` on.
    """
    rest, start = bytearray(), offset
    for position, data in chunks:
        if position + len(data) <= offset:
            continue
        if position > start + len(rest):  # the bytes before were dropped
            rest, start = bytearray(), position
        rest += data[max(0, start + len(rest) - position) :]
        while len(rest) >= MAX_BLOCK:
            cut = rest.rfind(b"\n", 0, MAX_BLOCK) + 1 or MAX_BLOCK
            yield Block(start, bytes(rest[:cut]))
            del rest[:cut]
            start += cut
    if rest:
        yield Block(start, bytes(rest))


def blocks_from_end(chunks: Iterable[tuple[int, bytes]], end: int) -> Iterator[Block]:
    """Yield the lines before `end`, the last block first.

    Args:
        chunks: Offset and bytes of each chunk, in reverse order, from the chunk with the byte before `end` on.
    """
    parts: list[bytes] = []  # in reverse order
    size, start = 0, end
    for position, data in chunks:
        part = data[: max(0, start - position)]
        if not part:
            continue
        parts.append(part)
        size, start = size + len(part), position
        if size < MAX_BLOCK:
            continue
        rest = b"".join(reversed(parts))
        while len(rest) >= MAX_BLOCK:
            # The last line may have no end. A cut is behind the end of a line, at which the block before ends.
            cut = rest.find(b"\n", len(rest) - MAX_BLOCK, len(rest) - 1) + 1 or len(rest) - MAX_BLOCK
            yield Block(start + cut, rest[cut:])
            rest = rest[:cut]
        parts, size = [rest], len(rest)
    rest = b"".join(reversed(parts))
    if rest:
        yield Block(start, rest)


Order = Literal["asc", "desc"]


@dataclass(frozen=True)
class LogSearch:
    """Which lines to find, where to begin, and in which direction."""

    pattern: LinePattern
    offset: int | None = None
    """Begin at this byte; in descending order, end before it. Default: the beginning, or the end."""
    order: Order = "asc"
    limit: int = 100


def search_log(
    database: Database,
    job_id: str,
    rank: str,
    search: LogSearch,
    *,
    attempt: int | None,
    now: datetime,
    clock: Callable[[], float] = time.monotonic,
) -> LogLines:
    """Return the next matching lines of a rank's log. Raises NotFoundError: there is no such job, attempt or log."""
    deadline = clock() + MAX_SECONDS
    with database.read() as session:
        logs = LogRepository(session, database)
        row, size = find_log(session, logs, job_id, rank, attempt, now)
        if row is None:
            return LogLines(data=[], has_more=False, next_offset=search.offset or 0)
        matches = _search(_blocks(logs, row.id, rank, search, size), search, size, lambda: clock() > deadline)
        return matches.model_copy(update={"attempt": row.number})


def _blocks(logs: LogRepository, attempt_id: str, rank: str, search: LogSearch, size: int) -> Iterator[Block]:
    if search.order == "asc":
        begin = search.offset or 0
        return blocks(logs.raw_chunks(attempt_id, rank, first=begin), begin)
    end = size if search.offset is None else min(search.offset, size)
    return blocks_from_end(logs.raw_chunks(attempt_id, rank, before=end), end)


def _search(parts: Iterable[Block], search: LogSearch, size: int, is_late: Callable[[], bool]) -> LogLines:
    ascending = search.order == "asc"
    lines: list[LogLine] = []
    reached = min(search.offset or 0, size) if ascending else 0
    for block in parts:
        matches = list(matching_lines(block, search.pattern))
        for line, end in matches if ascending else reversed(matches):
            lines.append(line)
            if len(lines) == search.limit:
                return LogLines(data=lines, has_more=True, next_offset=end if ascending else line.offset)
        reached = block.offset + len(block.data) if ascending else block.offset
        if is_late():
            more = reached < size if ascending else reached > 0
            return LogLines(data=lines, has_more=more, next_offset=reached)
        if ascending and reached >= size and block.data[-1:] != b"\n":
            reached = block.offset + block.data.rfind(b"\n") + 1  # The last line may get longer.
    return LogLines(data=lines, has_more=False, next_offset=reached)


def matching_lines(block: Block, pattern: LinePattern) -> Iterator[tuple[LogLine, int]]:
    """Yield the matching lines of a block, each with the offset behind it."""
    data, position = block.data, 0
    while position < len(data):
        match = pattern.first.search(data, position)
        if match is None:
            return
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.start())
        end = len(data) if end < 0 else end
        accepted, level = pattern.accepts(data[start:end])
        position = end + 1
        if accepted:
            text = _excerpt(data[start:end], match.start() - start, match.end() - start)
            yield LogLine(offset=block.offset + start, text=text, level=level), block.offset + position


def _excerpt(line: bytes, start: int, end: int) -> str:
    """Return a line's text around a match: if progress bars overwrote the line, only the part with the match."""
    line = line.removesuffix(b"\r")
    first = line.rfind(b"\r", 0, start) + 1
    last = line.find(b"\r", end)
    first, last = max(first, min(start - MAX_LINE // 4, len(line))), len(line) if last < 0 else last
    shown = line[first : min(last, first + MAX_LINE)]
    text = shown.decode(errors="replace")
    before = "… " if first and line[first - 1 : first] != b"\r" else ""
    after = " …" if first + len(shown) < last else ""
    return f"{before}{text}{after}"
