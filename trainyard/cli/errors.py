"""Errors and exit codes of commands, and their group. Imports no client: the help of `trainyard` needs none."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from trainyard.cli.commands import COMMANDS, load_command
from trainyard.cli.output import discard_stdout, print_error

FAILED, USAGE, CANCELLED, UNREACHABLE, UNAUTHORIZED, NOT_FOUND, CONFLICT, ELSEWHERE = 1, 2, 3, 4, 5, 6, 7, 8
INTERRUPTED, BROKEN_PIPE = 130, 141

EXIT_CODES = (
    "Exit codes: 0 success; 1 the job or the service failed; 2 invalid usage or spec; 3 the job was "
    "cancelled; 4 cannot connect; 5 not authorized; 6 not found; 7 conflict with the job's status; 8 type the "
    "printed line elsewhere; 130 interrupted."
)

_OTHER_NAMES = {
    **dict.fromkeys(("status", "job", "info", "describe", "get", "view", "sacct"), "show"),
    **dict.fromkeys(("stop", "kill", "scancel", "abort", "terminate", "end"), "cancel"),
    **dict.fromkeys(("ps", "ls", "jobs", "runs", "queue", "squeue"), "list"),
    **dict.fromkeys(("start", "train", "create", "sbatch", "new"), "submit"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("srun", "launch", "torchrun"), "run"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
    **dict.fromkeys(("continue", "unpause"), "resume"),
    **dict.fromkeys(("restart", "requeue", "rerun"), "retry"),
    **dict.fromkeys(("sinfo", "nodes", "gpus", "partitions"), "cluster"),
    **dict.fromkeys(("server", "up"), "serve"),
    **dict.fromkeys(("diff",), "compare"),
    **dict.fromkeys(("ssh", "attach"), "shell"),
}
"""Commands of other tools, and the command that does the same."""

_JSON_OUTPUT: ContextVar[bool] = ContextVar("for_programs", default=False)
"""Whether this command was called with --json."""


class UsageError(Exception):
    """The arguments of the command are invalid."""


class ConversionError(Exception):
    """A checkpoint could not be converted."""


class GenerationError(Exception):
    """A model could not be loaded, or generated no text."""


class DataError(Exception):
    """The data of a spec could not be read."""


class CommandGroup(TyperGroup):
    """The group of all commands, each of which is imported when it is called. Translates errors to messages and exit
    codes."""

    def __init__(self, **settings: Any) -> None:
        """Add a command for each line of the table, which has all texts of the help and of the completion of names."""
        super().__init__(**settings)
        for panel, commands in COMMANDS.items():
            for name, (_, summary) in commands.items():
                self.add_command(TyperCommand(name, help=summary, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command itself and its arguments."""
        meant = _OTHER_NAMES.get(args[0]) if args else None
        if meant is not None and args[0] not in self.commands and meant in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        name, listed, arguments = super().resolve_command(ctx, args)
        return name, listed and load_command(listed.name or ""), arguments

    def main(self, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("args")
        arguments = [*(sys.argv[1:] if given is None else given)]
        # Arguments after -- belong to another program.
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
    """State whether this command was called with --json, if its own arguments and a program's share a list."""
    _JSON_OUTPUT.set(as_json)


def print_note(text: str, *, prefix: str = "note: ") -> None:
    """Print a note on stderr, unless with --json, where stderr has only errors."""
    if not _JSON_OUTPUT.get():
        print_error(f"{prefix}{text}")


def report_error(error: Exception) -> int:
    """Print the error on stderr, as a single line or with --json as an object, and return its exit code."""
    from trainyard.cli.error_texts import print_problem  # It imports the client, whose errors it translates.

    return print_problem(error, as_json=_JSON_OUTPUT.get())
