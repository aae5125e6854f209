"""Errors of commands: one line on stderr, or one object with --json, and an exit code for each kind."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperGroup

from trainyard.cli.output import discard_stdout, print_error
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

FAILED, USAGE, CANCELLED, UNREACHABLE, UNAUTHORIZED, NOT_FOUND, CONFLICT, ELSEWHERE = 1, 2, 3, 4, 5, 6, 7, 8
INTERRUPTED, BROKEN_PIPE = 130, 141

EXIT_CODES = (
    "Exit codes: 0 success; 1 the job or the service failed; 2 invalid usage or spec; 3 the job was "
    "cancelled; 4 cannot connect; 5 not authorized; 6 not found; 7 conflict with the job's status; 8 type the "
    "printed line elsewhere; 130 interrupted."
)

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
"""The `type` of each error in JSON: the service's types, and those of the client."""

_SUGGESTIONS: dict[str | None, str] = {
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
"""The suggestion that is printed after an error with this code."""

_JSON_OUTPUT: ContextVar[bool] = ContextVar("for_programs", default=False)
"""Whether this command was called with --json."""


class UsageError(Exception):
    """The arguments of the command are invalid."""


class ConversionError(Exception):
    """A checkpoint could not be converted."""


class GenerationError(Exception):
    """A model could not be loaded, or generated no text."""


class CommandGroup(TyperGroup):
    """The group of all commands. Translates errors to messages and exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("args")
        arguments = [*(sys.argv[1:] if given is None else given)]
        # What follows -- belongs to another program.
        _JSON_OUTPUT.set("--json" in arguments[: arguments.index("--")] if "--" in arguments else "--json" in arguments)
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except Exception as error:
            # Usage errors of Typer; their class depends on the library that Typer parses with.
            if not hasattr(error, "format_message"):
                raise
            code = report_error(UsageError(error.format_message()))
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands grouped by their help panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            heading = panel if isinstance(panel, str) else "Commands"
            panels.setdefault(heading, []).append((name, command.get_short_help_str(100)))
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_error():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Report an error of the block and exit with its exit code; `TRAINYARD_DEBUG=1` shows tracebacks."""
    try:
        yield
    except BrokenPipeError:
        discard_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if isinstance(error, typer.Exit) or hasattr(error, "format_message"):
            raise
        if os.environ.get("TRAINYARD_DEBUG") == "1":
            raise
        raise typer.Exit(report_error(error)) from None


def show_help(ctx: typer.Context) -> None:
    """Print the help of a group that is called without a command."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(USAGE)


def use_json_output(as_json: bool) -> None:
    """State whether this command was called with --json, where its own arguments and a program's are one list."""
    _JSON_OUTPUT.set(as_json)


def print_note(text: str, *, prefix: str = "note: ") -> None:
    """Print a note on stderr, unless with --json, where stderr has only errors."""
    if not _JSON_OUTPUT.get():
        print_error(f"{prefix}{text}")


def report_error(error: Exception) -> int:
    """Print the error on stderr and return its exit code."""
    if _JSON_OUTPUT.get():
        print(json.dumps(_as_json(error)), file=sys.stderr, flush=True)
        return _exit_code(error)
    if isinstance(error, SpecError | InvalidRequestError):
        for problem in error.problems:
            print_error(str(problem) if problem.param else f"error: {problem.message}")
    else:
        suggestion = _SUGGESTIONS.get(getattr(error, "code", None))
        print_error(f"error: {_message(error)}" + (f"; {suggestion}" if suggestion else ""))
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
    if isinstance(error, UsageError | ConversionError | GenerationError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; set TRAINYARD_DEBUG=1 for a traceback"


def _as_json(error: Exception) -> dict[str, Any]:
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
