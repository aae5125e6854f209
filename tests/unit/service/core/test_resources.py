"""Resources from rows: every field has a value of the row, or a given value."""

from types import SimpleNamespace
from typing import Literal

import pytest
from pydantic import BaseModel

from service.core.resources import resource_of


class Box(BaseModel):
    object: Literal["box"] = "box"
    id: str
    size: int = 1


def test_fields_come_from_the_row_unless_they_are_given() -> None:
    assert resource_of(Box, SimpleNamespace(id="a", size=2)) == Box(id="a", size=2)
    assert resource_of(Box, SimpleNamespace(id="a"), size=3) == Box(id="a", size=3)


def test_a_field_that_the_row_lacks_does_not_become_its_default() -> None:
    with pytest.raises(AttributeError, match="size"):
        resource_of(Box, SimpleNamespace(id="a"))
