"""Where known parts of a text are, between others that are not known. A pure function."""

from collections.abc import Sequence


def aligned(text: str, parts: Sequence[str]) -> list[int] | None:
    """Return where each part begins: the first at the beginning of the text, the last one at its end, and the others
    in their order; None if they are not all there, or if there are several ways."""
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
