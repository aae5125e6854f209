"""Which pieces share a row. Pure: a function of the pieces' lengths and order alone, so that examples are fixed."""

from collections.abc import Iterable, Iterator

from worker.data.token_rows import Piece

OPEN_ROWS = 64
"""Rows that are tried for a piece: first fit over all of them would take time that grows as the square of the data."""


def pack(pieces: Iterable[Piece], length: int) -> Iterator[list[Piece]]:
    """Rows of whole pieces, `length` tokens at most: each piece goes to the first of the open rows with room for it."""
    rows: list[list[Piece]] = []
    room: list[int] = []
    for piece in pieces:
        size = len(piece.tokens)
        place = next((place for place, left in enumerate(room) if left >= size), None)
        if place is None:
            if len(rows) == OPEN_ROWS:
                room.pop(0)
                yield rows.pop(0)
            rows.append([])
            room.append(length)
            place = len(rows) - 1
        rows[place].append(piece)
        room[place] -= size
    yield from rows
