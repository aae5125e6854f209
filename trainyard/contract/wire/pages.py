"""Lists and errors: the two envelopes that every route shares."""

from typing import Generic, Literal, TypeVar

from pydantic import ConfigDict

from trainyard.contract.base import Resource

T = TypeVar("T")


class Page(Resource, Generic[T]):
    """One page of a list; the next starts with `?after=<last_id>`."""

    # Nothing below is documented, and looking for it in the source, once for each kind of item, took half a second.
    model_config = ConfigDict(use_attribute_docstrings=False)

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class ErrorBody(Resource):
    """What went wrong."""

    message: str
    type: str
    """`invalid_request_error`, `authentication_error`, `permission_error`, `not_found_error`, `conflict_error`,
    `rate_limit_error` or `server_error`."""
    param: str | None = None
    """The field or parameter at fault."""
    code: str


class ErrorEnvelope(Resource):
    """The one form of every error, on every route."""

    error: ErrorBody
    problems: list[dict[str, str]] | None = None
    """Every problem found in a spec, each with `param` and `message`; the first is the one in `error`."""
