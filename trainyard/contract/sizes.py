"""Sizes of memory and files as text. They are binary everywhere: a GiB has 2**30 bytes. Pure functions."""

GIB = 2**30
MIB = 2**20
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NEXT = 1000
"""From here on, three digits need the next unit."""


def size_unit(count: float) -> tuple[int, str]:
    """Return the unit in which a size has at most three digits before the point: its bytes and its name."""
    bytes_ = 1
    for name in _UNITS[:-1]:
        if round(abs(count) / bytes_) < _NEXT:
            return bytes_, name
        bytes_ *= 1024
    return bytes_, _UNITS[-1]


def format_size(count: float) -> str:
    """Return a size such as `1.5 MiB`."""
    bytes_, name = size_unit(count)
    return f"{count / bytes_:.3g} {name}"
