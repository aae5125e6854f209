"""Node lists of Slurm, such as `n[1-3,7],gpu5`."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, product

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
"""A comma within brackets does not end a part."""
_SHOWN = 4


def is_listed(node: str, node_list: str) -> bool:
    """Return whether a node is in a node list, which may have more nodes than can be named."""
    for part in _PART.findall(node_list):
        pieces = re.split(r"\[([^\]]*)\]", part)
        pattern = "".join(r"(\d+)" if number % 2 else re.escape(text) for number, text in enumerate(pieces))
        match = re.fullmatch(pattern, node)
        if match and all(_in_ranges(digits, text) for digits, text in zip(match.groups(), pieces[1::2], strict=True)):
            return True
    return False


def expand_node_list(node_list: str, limit: int) -> list[str] | None:
    """Return the names in a node list in its order; None if it is no such list, or names more than `limit` nodes."""
    parts = _PART.findall(node_list)
    if ",".join(parts) != node_list:
        return None
    names: list[str] = []
    try:
        for part in parts:
            pieces = re.split(r"\[([^\]]*)\]", part)
            choices = [
                list(islice(_numbers(text), limit + 1)) if number % 2 else [text] for number, text in enumerate(pieces)
            ]
            names += ["".join(chosen) for chosen in islice(product(*choices), limit + 1)]
    except ValueError:
        return None
    return names if 0 < len(names) <= limit else None


def shorten(names: Sequence[str]) -> str:
    """Return the first names and the number of the others, for a table."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of ranges such as `08-12,17`, with the leading zeros.

    Raises:
        ValueError: a bound is no number.
    """
    for each in ranges.split(","):
        low, _, high = each.partition("-")
        for number in range(int(low), int(high or low) + 1):
            yield f"{number:0{len(low)}}"


def _in_ranges(digits: str, ranges: str) -> bool:
    """Return whether a number is in ranges such as `08-12,17`, with the leading zeros."""
    bounds = [(low, high or low) for low, _, high in (each.partition("-") for each in ranges.split(","))]
    return any(int(low) <= int(digits) <= int(high) and len(low) <= len(digits) <= len(high) for low, high in bounds)
