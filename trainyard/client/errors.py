"""The errors of the client. Errors of httpx and error responses of the service are translated here."""

from collections.abc import Sequence

import httpx

from trainyard.contract.http import describe_foreign, describe_tls_error, describe_way, error_envelope, has_api_header
from trainyard.contract.local_paths import is_loopback
from trainyard.contract.problems import Problem


class TrainyardError(Exception):
    """Base class of all errors of the client."""

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """HTTP status. None: there was no response."""
        self.code = code
        self.param = param
        """The invalid field or parameter."""
        self.retry_after: float | None = None
        """Seconds after which the request may be repeated, as requested by the service."""


class SettingError(TrainyardError):
    """The configured URL or token is malformed."""


class ConnectionFailedError(TrainyardError):
    """The service could not be reached, or the connection broke."""


class ForeignAnswerError(ConnectionFailedError):
    """Something other than the service answered, such as a proxy. Its status says nothing about the request."""


class WaitTimeoutError(TrainyardError):
    """The job has not ended within the timeout."""


class AuthenticationError(TrainyardError):
    """The token is missing, unknown, expired or revoked."""


class PermissionDeniedError(TrainyardError):
    """The token's role does not permit the request."""


class NotFoundError(TrainyardError):
    """The resource does not exist."""


class ConflictError(TrainyardError):
    """The current state of the resource does not permit the request."""


class RateLimitedError(TrainyardError):
    """Too many requests."""


class ServerError(TrainyardError):
    """The service failed."""


class InvalidRequestError(TrainyardError):
    """The request is invalid. `problems` lists all problems, not only the first."""

    def __init__(
        self,
        message: str,
        *,
        problems: Sequence[Problem] = (),
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, status=status, code=code, param=param)
        self.problems = tuple(problems) or (Problem(param=param or "", message=message),)

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))


_BY_STATUS: dict[int, type[TrainyardError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    429: RateLimitedError,
}


def connection_failed(url: str, error: Exception) -> ConnectionFailedError:
    """Return the error for a service that cannot be reached."""
    way = describe_way(error)
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailedError(f"cannot connect to {url}{way}: {_hint(url, error)}")
    reason = str(error) or type(error).__name__
    return ConnectionFailedError(f"the connection to {url}{way} failed: {reason}")


def _hint(url: str, error: httpx.ConnectError) -> str:
    if (problem := describe_tls_error(error)) is not None:
        return problem
    if is_loopback(httpx.URL(url).host):
        return "is the service running? Start it with: trainyard serve"
    return "is TRAINYARD_URL correct, and is the service running?"


class TargetExistsError(TrainyardError):
    """A download would replace a file."""


_HEAD_MESSAGES: dict[int, str] = {
    401: "a valid token is needed",
    403: "your token does not permit running code; an administrator grants this with "
    "`trainyard tokens create NAME --may-run-code` or TRAINYARD_CODE_ROLES",
    404: "the service does not have this code",
}
"""Messages for responses to HEAD, which have no body; only code is requested with HEAD."""


def error_of(response: httpx.Response) -> TrainyardError:
    """Return the error for a response that is not successful and whose body has been read."""
    is_bare = response.request.method == "HEAD" and has_api_header(response)
    error = _head_error(response.status_code) if is_bare else _translated(response)
    error.retry_after = _retry_after(response)
    return error


def require_own(response: httpx.Response) -> None:
    """Raise ForeignAnswerError unless the service itself sent a successful response, whose body does not prove it."""
    if not has_api_header(response):
        raise not_trainyard(response)


def unreadable(response: httpx.Response) -> TrainyardError:
    """Return the error for a response with an unexpected body."""
    if has_api_header(response):
        message = "the service's answer cannot be read; are the client and the service of the same release?"
        return ServerError(message, status=response.status_code)
    return not_trainyard(response)


def not_trainyard(response: httpx.Response) -> ForeignAnswerError:
    """Return the error for a response that a Trainyard service would not send."""
    return ForeignAnswerError(f"{describe_foreign(response)}; is TRAINYARD_URL correct?", status=response.status_code)


def _translated(response: httpx.Response) -> TrainyardError:
    if (envelope := error_envelope(response)) is None:
        return unreadable(response)
    body, status = envelope.error, response.status_code
    if status in _BY_STATUS:
        return _BY_STATUS[status](body.message, status=status, code=body.code, param=body.param)
    if status >= 500:
        return ServerError(body.message, status=status, code=body.code, param=body.param)
    problems = [Problem(param=p.get("param", ""), message=p.get("message", "")) for p in envelope.problems or ()]
    return InvalidRequestError(body.message, problems=problems, status=status, code=body.code, param=body.param)


def _head_error(status: int) -> TrainyardError:
    message = _HEAD_MESSAGES.get(status, f"the service returned {status} when checking for the code")
    return _BY_STATUS.get(status, ServerError)(message, status=status)


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None
