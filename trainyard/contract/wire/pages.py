"""Lists and errors: the two envelopes that every route shares."""

from typing import Generic, Literal, TypeVar

from trainyard.contract.base import Resource

T = TypeVar("T")


class Page(Resource, Generic[T]):
    """One page of a list; `?after=<last_id>` requests the next page."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class ErrorBody(Resource):
    """One error."""

    message: str
    type: str
    """`invalid_request_error`, `authentication_error`, `permission_error`, `not_found_error`, `conflict_error`,
    `rate_limit_error` or `server_error`."""
    param: str | None = None
    """The invalid field or parameter."""
    code: str


class ErrorEnvelope(Resource):
    """The body of every error response."""

    error: ErrorBody
    problems: list[dict[str, str]] | None = None
    """All problems of a spec, each with `param` and `message`; the first is also in `error`."""
