"""Cuts the chunks of a log into blocks of whole lines, in either direction. Pure functions."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

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
