"""The service's errors. Each has an HTTP status, a type and a code, and all are sent in the same envelope."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from trainyard.contract.problems import Problem
from trainyard.contract.wire.pages import ErrorBody, ErrorEnvelope


class ServiceError(Exception):
    """Base of all errors that are sent to the caller."""

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
    """A value of the payload is invalid."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_value"


class InvalidSpecError(InvalidRequestError):
    """A spec with problems; the response lists all of them."""

    code = "invalid_spec"

    def __init__(self, problems: Sequence[Problem]):
        super().__init__(problems[0].message, param=problems[0].param or None)
        self.problems = problems

    def envelope(self) -> ErrorEnvelope:
        problems = [problem.model_dump() for problem in self.problems]
        return super().envelope().model_copy(update={"problems": problems})


class MalformedRequestError(ServiceError):
    """The request cannot be parsed."""

    status = 400
    type = "invalid_request_error"
    code = "malformed"


class ClientGoneError(ServiceError):
    """The client disconnected before its request was received or processed. Only metrics and the audit log show it."""

    status = 499
    type = "invalid_request_error"
    code = "client_gone"


class BodyTooLargeError(ServiceError):
    """The body is larger than the route accepts."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class HeadTooLargeError(ServiceError):
    """The URL or the headers are larger than the service accepts."""

    status = 431
    type = "invalid_request_error"
    code = "head_too_large"


class MethodNotSupportedError(ServiceError):
    """The service does not know the method of the request."""

    status = 501
    type = "invalid_request_error"
    code = "method_not_supported"


class RangeError(ServiceError):
    """The requested range lies outside the file."""

    status = 416
    type = "invalid_request_error"
    code = "range_not_satisfiable"

    def __init__(self, size: int):
        super().__init__(f"is outside the file, which has {size} bytes", param="Range")
        self.headers = {"Content-Range": f"bytes */{size}"}


class AuthenticationError(ServiceError):
    """The token is missing, unknown, expired or revoked; the response does not reveal which."""

    status = 401
    type = "authentication_error"
    code = "invalid_token"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}

    def __init__(
        self,
        message: str = "missing, unknown, expired or revoked token: send the header `Authorization: Bearer <token>`",
    ) -> None:
        super().__init__(message)


class PermissionDeniedError(ServiceError):
    """The token is valid but lacks the permission."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class AttemptEndedError(PermissionDeniedError):
    """A worker reports to an attempt that has ended."""

    code = "attempt_ended"

    def __init__(self, attempt_id: str):
        super().__init__(f"attempt {attempt_id} has ended; its reports are no longer accepted")


class QuotaExceededError(PermissionDeniedError):
    """A quota of the user is exhausted."""

    code = "quota_exceeded"


class NotFoundError(ServiceError):
    """The resource does not exist."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ConflictError(ServiceError):
    """The request does not fit the current state of the resource."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class LogOffsetError(ConflictError):
    """A log append would leave a gap; `next_offset` is the offset to continue at."""

    code = "log_offset"

    def __init__(self, next_offset: int):
        super().__init__(f"the expected offset is {next_offset}", param="offset")
        self.next_offset = next_offset


class RequestTimeoutError(ServiceError):
    """The body is sent too slowly."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class TooManyRequestsError(ServiceError):
    """The service is at a limit; the same request may succeed later."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_requests"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class RateLimitedError(TooManyRequestsError):
    """A token exceeds its request rate."""

    code = "rate_limited"

    def __init__(self, seconds: int):
        super().__init__(f"rate limit exceeded; retry after {seconds} s")
        self.headers = {"Retry-After": str(seconds)}


class UnavailableError(ServiceError):
    """A dependency of the service is unavailable; the same request may succeed later."""

    status = 503
    code = "unavailable"
    headers: Mapping[str, str] = {"Retry-After": "2"}


class LeaseLostError(Exception):
    """Another service has become the leader; the transaction rests on outdated state and is rolled back."""
