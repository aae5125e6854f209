"""Locates known parts of a text between unknown parts. A pure function."""

from collections.abc import Sequence


def aligned(text: str, parts: Sequence[str]) -> list[int] | None:
    """Return the start of each part in the text, which the first part starts and the last part ends.

    The other parts follow in their order. None if a part is missing, or if they fit in several ways.
    """
    first, *inner, last = parts
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or end < len(first):
        return None
    left, position = [], len(first)
    for part in inner:
        start = text.find(part, position, end)
        if start < 0:
            return None
        left.append(start)
        position = start + len(part)
    right, stop = [], end
    for part in reversed(inner):
        stop = text.rfind(part, len(first), stop)
        right.append(stop)
    return [0, *left, end] if left == right[::-1] else None
