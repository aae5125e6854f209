"""The one error tree of the client. What httpx and the service say is translated here, once."""

import json
from collections.abc import Sequence

import httpx
from pydantic import ValidationError

from trainyard.contract.local_paths import is_loopback
from trainyard.contract.problems import Problem
from trainyard.contract.wire.pages import ErrorEnvelope


class TrainyardError(Exception):
    """Anything that can go wrong between a program and the service."""

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """HTTP status, where the service answered."""
        self.code = code
        self.param = param
        """The field or parameter at fault."""
        self.retry_after: float | None = None
        """Seconds after which the service wants to be asked again."""


class SettingError(TrainyardError):
    """The URL or the token that the client was given cannot be one."""


class ConnectionFailedError(TrainyardError):
    """The service could not be reached, or the connection broke."""


class WaitTimeoutError(TrainyardError):
    """The job was not over in the time given."""


class AuthenticationError(TrainyardError):
    """No token, or one that the service does not know."""


class PermissionDeniedError(TrainyardError):
    """The token's role does not allow it."""


class NotFoundError(TrainyardError):
    """There is no such thing."""


class ConflictError(TrainyardError):
    """The state of the thing forbids it."""


class RateLimitedError(TrainyardError):
    """Too many requests."""


class ServerError(TrainyardError):
    """The service failed, or what answered is not a Trainyard service."""


class InvalidRequestError(TrainyardError):
    """The request is wrong. `problems` has everything found, not only the first."""

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
    """The one line for a service that is not there."""
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailedError(f"cannot connect to {url}: {_what_to_try(url, error)}")
    reason = str(error) or type(error).__name__
    return ConnectionFailedError(f"the connection to {url} failed: {reason}")


def _what_to_try(url: str, error: httpx.ConnectError) -> str:
    if "ssl" in str(error).lower():
        return f"{error}; should TRAINYARD_URL begin with http://?"
    if is_loopback(httpx.URL(url).host):
        return "is the service running? start it with: trainyard serve"
    return "is TRAINYARD_URL right, and is the service running there?"


_OF_HEAD: dict[int, str] = {
    401: "a valid token is needed",
    403: "your token may not run code of its own; an administrator grants it with "
    "`trainyard tokens create NAME --may-run-code` or TRAINYARD_CODE_ROLES",
    404: "the service does not have this code",
}
"""Only code is asked for with HEAD, and the answer has no body that would say why."""


def error_of(response: httpx.Response) -> TrainyardError:
    """The error that an answer stands for; its body has been read."""
    error = _of_head(response.status_code) if response.request.method == "HEAD" else _translated(response)
    error.retry_after = _retry_after(response)
    return error


def not_trainyard(response: httpx.Response) -> ServerError:
    """For an answer that a Trainyard service would not give."""
    message = f"{response.request.url} answered {response.status_code} with something that is not Trainyard's"
    return ServerError(f"{message}; is TRAINYARD_URL right?", status=response.status_code)


def _translated(response: httpx.Response) -> TrainyardError:
    try:
        envelope = ErrorEnvelope.model_validate(json.loads(response.content))
    except (ValueError, ValidationError):
        return not_trainyard(response)
    body, status = envelope.error, response.status_code
    if status in _BY_STATUS:
        return _BY_STATUS[status](body.message, status=status, code=body.code, param=body.param)
    if status >= 500:
        return ServerError(body.message, status=status, code=body.code, param=body.param)
    problems = [Problem(param=p.get("param", ""), message=p.get("message", "")) for p in envelope.problems or ()]
    return InvalidRequestError(body.message, problems=problems, status=status, code=body.code, param=body.param)


def _of_head(status: int) -> TrainyardError:
    message = _OF_HEAD.get(status, f"the service answered {status} when it was asked whether it has the code")
    return _BY_STATUS.get(status, ServerError)(message, status=status)


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else None
