"""Resources of the API, made from rows."""

from typing import Any, TypeVar

from pydantic import BaseModel

R = TypeVar("R", bound=BaseModel)


def resource_of(kind: type[R], row: object, **values: Any) -> R:
    """Return a resource with these values, and the values of the row with the names of its other fields.

    Fields that the row lacks have their defaults.

    Raises:
        AttributeError: the row lacks a required field.
    """
    for name, field in kind.model_fields.items():
        if name not in values and (field.is_required() or hasattr(row, name)):
            values[name] = getattr(row, name)
    return kind(**values)
