"""Where known pieces of a text are, between parts that are not known. A pure function."""

from collections.abc import Sequence


def aligned(text: str, pieces: Sequence[str]) -> list[int] | None:
    """Return where each piece begins: the first at the beginning of the text, the last one at its end, and the others
    in their order; None if they are not all there, or if there are several ways."""
    first, *inner, last = pieces
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or end < len(first):
        return None
    left, position = [], len(first)
    for piece in inner:
        start = text.find(piece, position, end)
        if start < 0:
            return None
        left.append(start)
        position = start + len(piece)
    right, stop = [], end
    for piece in reversed(inner):
        stop = text.rfind(piece, len(first), stop)
        right.append(stop)
    return [0, *left, end] if left == right[::-1] else None
