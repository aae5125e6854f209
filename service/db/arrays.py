"""Array literals of Postgres for columns of numbers: faster than the lists of the driver."""

from collections.abc import Sequence

import msgspec


def array_elements(column: Sequence[float | None]) -> str:
    """Return ints or finite floats as an array literal without its braces; None becomes NULL.

    For numbers and null, the elements of a JSON array have the same syntax.
    """
    return msgspec.json.encode(column)[1:-1].decode()


def array_literal(column: Sequence[float | None]) -> str:
    """Return a column of ints or finite floats as an array literal; None becomes NULL."""
    return "{" + array_elements(column) + "}"
