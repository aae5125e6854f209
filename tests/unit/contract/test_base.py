"""The JSON schema of a model describes each field by the docstring below it."""

from pydantic import Field

from trainyard.contract.base import Resource, Strict


class Former(Resource):
    """A model."""

    step: int
    """The number of
    completed steps."""
    loss: float
    """The loss."""


class Nested(Former):
    loss: float
    rank: int = Field(alias="from", description="The rank.")
    """Not shown: the description wins."""


class Body(Strict):
    inner: Nested
    """What is inside."""
    source: str = Field(alias="from")
    """Where it is from."""


def test_fields_are_described_by_their_docstrings() -> None:
    schema = Body.model_json_schema()
    assert schema["properties"]["inner"]["description"] == "What is inside."
    assert schema["properties"]["from"]["description"] == "Where it is from."
    nested = schema["$defs"]["Nested"]["properties"]
    described = {name: field.get("description") for name, field in nested.items()}
    assert described == {"step": "The number of\ncompleted steps.", "loss": None, "from": "The rank."}


def test_fields_are_described_by_name_where_the_schema_has_names() -> None:
    assert Body.model_json_schema(by_alias=False)["properties"]["source"]["description"] == "Where it is from."
