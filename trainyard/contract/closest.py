"""The names that someone may have meant. Pure."""

from collections.abc import Collection
from difflib import get_close_matches

_FEW = 20


def closest(wanted: str, names: Collection[str], count: int = 5) -> str:
    """All the names where they are few; else those most like the wanted one, or the first ones. For a message."""
    ordered = list(names)
    if len(ordered) <= _FEW:
        return ", ".join(ordered)
    near = get_close_matches(wanted, ordered, n=count, cutoff=0.3) or ordered[:count]
    more = f" and {len(ordered) - len(near)} more" if len(ordered) > len(near) else ""
    return ", ".join(near) + more
