"""Errors as texts and as objects, and their exit codes."""

import json
import sys
from typing import Any

from trainyard.cli.errors import (
    CONFLICT,
    FAILED,
    NOT_FOUND,
    UNAUTHORIZED,
    UNREACHABLE,
    USAGE,
    ConversionError,
    DataError,
    GenerationError,
    UsageError,
)
from trainyard.cli.output import print_error
from trainyard.client.errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    SettingError,
    TargetExistsError,
    TrainyardError,
)
from trainyard.contract.problems import SpecError

_CODES: tuple[tuple[type[TrainyardError], int], ...] = (
    (ConnectionFailedError, UNREACHABLE),
    (AuthenticationError, UNAUTHORIZED),
    (PermissionDeniedError, UNAUTHORIZED),
    (NotFoundError, NOT_FOUND),
    (ConflictError, CONFLICT),
    (InvalidRequestError, USAGE),
    (SettingError, USAGE),
    (TargetExistsError, USAGE),
)


_KINDS: tuple[tuple[type[TrainyardError], str], ...] = (
    (ConnectionFailedError, "connection_error"),
    (AuthenticationError, "authentication_error"),
    (PermissionDeniedError, "permission_error"),
    (NotFoundError, "not_found_error"),
    (ConflictError, "conflict_error"),
    (RateLimitedError, "rate_limit_error"),
    (InvalidRequestError, "invalid_request_error"),
    (SettingError, "setting_error"),
    (TargetExistsError, "usage_error"),
)
"""The `type` of each error in JSON: the types of the service and of the client."""

_HINTS: dict[str | None, str] = {
    "job_not_found": "list them with: trainyard list",
    "sweep_not_found": "list them with: trainyard sweeps",
    "token_not_found": "list them with: trainyard tokens list",
    "model_not_found": "list registered models with: trainyard models list",
    "secret_not_found": "list them with: trainyard secrets list",
    "webhook_not_found": "list them with: trainyard webhooks list",
    "route_not_found": "TRAINYARD_URL must be the service's address without a path",
    "artifact_not_found": "list them with: trainyard artifacts JOB",
    "attempt_not_found": "list them with: trainyard attempts JOB",
    "admin_required": "show your token with: trainyard tokens whoami",
    "forbidden": "show your token with: trainyard tokens whoami",
}
"""The hint that is printed after an error with this code."""


def print_problem(error: Exception, *, as_json: bool) -> int:
    """Print the error on stderr and return its exit code."""
    if as_json:
        print(json.dumps(_json_object(error)), file=sys.stderr, flush=True)
        return _exit_code(error)
    if isinstance(error, SpecError | InvalidRequestError):
        for problem in error.problems:
            print_error(str(problem) if problem.param else f"error: {problem.message}")
    else:
        hint = _HINTS.get(getattr(error, "code", None))
        print_error(f"error: {_message(error)}" + (f"; {hint}" if hint else ""))
    return _exit_code(error)


def _exit_code(error: Exception) -> int:
    if isinstance(error, SpecError | UsageError):
        return USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def _message(error: Exception) -> str:
    if isinstance(error, TrainyardError):
        hint = "; set it in TRAINYARD_TOKEN, or sign in with: trainyard login" if error.code == "invalid_token" else ""
        hint = (
            "; replace it with --force, or name another folder with --to"
            if isinstance(error, TargetExistsError)
            else hint
        )
        return error.message + hint
    if isinstance(error, UsageError | ConversionError | DataError | GenerationError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; set TRAINYARD_DEBUG=1 for a traceback"


def _json_object(error: Exception) -> dict[str, Any]:
    """Return the error in the format of the service's errors."""
    if isinstance(error, TrainyardError):
        kind = next((name for one, name in _KINDS if isinstance(error, one)), "server_error")
        body = {"message": _message(error), "type": kind, "param": error.param, "code": error.code or kind}
    else:
        kind = "usage_error" if isinstance(error, UsageError) else "client_error"
        body = {"message": _message(error), "type": kind, "param": None, "code": kind}
    if not isinstance(error, SpecError | InvalidRequestError):
        return {"error": body}
    problems = [problem.model_dump() for problem in error.problems]
    if isinstance(error, SpecError):
        body = {"message": problems[0]["message"], "type": "invalid_request_error", "code": "invalid_spec"}
        body["param"] = problems[0]["param"] or None
    return {"error": body, "problems": problems}
