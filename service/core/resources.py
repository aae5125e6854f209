"""Resources of the API, made from rows."""

from typing import Any, TypeVar

from pydantic import BaseModel

R = TypeVar("R", bound=BaseModel)


def resource_of(kind: type[R], row: object, **values: Any) -> R:
    """Return a resource with these values, and the values of the row with the names of its other fields.

    Raises:
        AttributeError: the row lacks a field. A default in its place would hide a column that was renamed.
    """
    fields = kind.model_fields.keys() - values.keys() - {"object"}
    return kind(**values, **{name: getattr(row, name) for name in fields})
