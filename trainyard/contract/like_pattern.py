"""Patterns of LIKE: `%` is any text, `_` any character. Matched in linear time for each part between two `%`."""

import re


def matches_pattern(text: str, pattern: str, *, ignore_case: bool = False) -> bool:
    """Return whether the whole text matches. One regular expression could take exponentially long for many `%`."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    parts = [re.compile(_expression(part), flags) for part in pattern.split("%")]
    lengths = [len(part) for part in pattern.split("%")]
    if len(parts) == 1:
        return parts[0].fullmatch(text) is not None
    if parts[0].match(text) is None:
        return False
    position, end = lengths[0], len(text) - lengths[-1]
    for part in parts[1:-1]:
        match = part.search(text, position)
        if match is None:
            return False
        position = match.end()
    return position <= end and parts[-1].fullmatch(text, end) is not None


def _expression(part: str) -> str:
    return "".join("." if character == "_" else re.escape(character) for character in part)
