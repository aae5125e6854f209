"""The service's error tree: each error knows its status, its type and its code; one envelope on the wire."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from trainyard.contract.problems import Problem
from trainyard.contract.wire.pages import ErrorBody, ErrorEnvelope


class ServiceError(Exception):
    """Something the caller can read and act on."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    headers: Mapping[str, str] = MappingProxyType({})

    def envelope(self) -> ErrorEnvelope:
        return ErrorEnvelope(error=ErrorBody(message=self.message, type=self.type, param=self.param, code=self.code))


class InvalidRequestError(ServiceError):
    """The payload is malformed, or asks for what cannot be."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_value"


class InvalidSpecError(InvalidRequestError):
    """A spec with problems; all of them are told."""

    code = "invalid_spec"

    def __init__(self, problems: Sequence[Problem]):
        super().__init__(problems[0].message, param=problems[0].param or None)
        self.problems = problems

    def envelope(self) -> ErrorEnvelope:
        told = [problem.model_dump() for problem in self.problems]
        return super().envelope().model_copy(update={"problems": told})


class MalformedRequestError(ServiceError):
    """Not even a payload."""

    status = 400
    type = "invalid_request_error"
    code = "malformed"


class BodyTooLargeError(ServiceError):
    """More bytes than the route takes."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class RangeError(ServiceError):
    """Bytes that the file does not have."""

    status = 416
    type = "invalid_request_error"
    code = "range_not_satisfiable"

    def __init__(self, size: int):
        super().__init__(f"lies outside the file, which has {size} bytes", param="Range")
        self.headers = {"Content-Range": f"bytes */{size}"}


class AuthenticationError(ServiceError):
    """No token, a wrong one, an expired one: all the same to a stranger."""

    status = 401
    type = "authentication_error"
    code = "invalid_token"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}

    def __init__(self) -> None:
        super().__init__("a valid token is needed: send the header `Authorization: Bearer <token>`")


class PermissionDeniedError(ServiceError):
    """A good token, used for what it is not for."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class QuotaExceededError(PermissionDeniedError):
    """What this person may hold is held already."""

    code = "quota_exceeded"


class NotFoundError(ServiceError):
    """There is no such thing."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ConflictError(ServiceError):
    """A good request at the wrong time."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class LogOffsetError(ConflictError):
    """A log append that leaves a gap; `next_offset` says where to go on."""

    code = "log_offset"

    def __init__(self, next_offset: int):
        super().__init__(f"the next byte expected is {next_offset}", param="offset")
        self.next_offset = next_offset


class RequestTimeoutError(ServiceError):
    """The body comes too slowly."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class TooManyRequestsError(ServiceError):
    """More than the service takes on at once; the same request may succeed later."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_requests"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class RateLimitedError(TooManyRequestsError):
    """One token asks more often than it may."""

    code = "rate_limited"

    def __init__(self, seconds: int):
        super().__init__(f"more requests than this token may make; come again in {seconds} s")
        self.headers = {"Retry-After": str(seconds)}


class UnavailableError(ServiceError):
    """Something behind the service does not answer now; the same request may succeed later."""

    status = 503
    code = "unavailable"
    headers: Mapping[str, str] = {"Retry-After": "2"}


class LeaseLostError(Exception):
    """Another service has become the leader; what was to be written rests on outdated state and is dropped."""
