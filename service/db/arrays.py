"""Columns of numbers as Postgres takes them in one parameter: quicker than the driver's own lists."""

from collections.abc import Sequence

import msgspec


def inside(column: Sequence[float | None]) -> str:
    """Numbers (ints, or finite floats) as an array literal without its braces; None is NULL.

    A JSON array's inside differs from it in nothing that numbers have.
    """
    return msgspec.json.encode(column)[1:-1].decode()


def literal(column: Sequence[float | None]) -> str:
    """The whole literal of one array."""
    return "{" + inside(column) + "}"
