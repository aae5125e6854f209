"""`shell` and `exec`: programs beside the ranks of a running job, in their environment."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.errors import ELSEWHERE, FAILED, UsageError
from trainyard.cli.node_commands import node_arguments, reason_here, run_and_read, run_on_terminal
from trainyard.cli.output import print_error, print_json, print_line, sanitize
from trainyard.contract.wire.job_access import AccessResource, CommandEnd, CommandOutput, parse_record

_MAX_NAME = 128
_MAX_LINE = 64 * 1024
_MAX_COLLECTED = 16 * 1024 * 1024
"""Maximum bytes of each stream of a node in an object of --json."""


def shell(
    ctx: typer.Context,
    job_id: JobArgument,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank beside which the shell opens.")] = 0,
) -> None:
    """Open a shell beside a rank of a running job, in its environment. Requires the code role.

    Where it cannot open, the line to type elsewhere is printed, with exit code 8.

    Example: trainyard shell last --rank 1
    """
    access = _request(ctx, job_id, rank, None)
    arguments = node_arguments(access, "shell", rank)
    _require_here(access, arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a shell needs a terminal; run one command with: trainyard exec JOB -- PROGRAM")
    raise typer.Exit(run_on_terminal(arguments))


def execute(
    ctx: typer.Context,
    job_id: JobArgument,
    argv: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM...", show_default=False, help="The command and its arguments."),
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only on the node of this rank.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="End the command on a node after so many seconds.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one command on each node of a running job, in the environment of its ranks. Requires the code role.

    The exit code is the highest of the nodes; 124 is a timeout. No shell reads the arguments. Where the command cannot
    run, the line to type elsewhere is printed, with exit code 8.

    Example: trainyard exec last -- nvidia-smi
    """
    if not argv:
        raise UsageError("name the command after --, such as: trainyard exec JOB -- nvidia-smi")
    access = _request(ctx, job_id, rank, argv[0])
    arguments = node_arguments(access, "exec", rank, argv, timeout)
    _require_here(access, arguments)
    report = NodeReport(as_json=as_json)
    status = run_and_read(arguments, report.receive, timeout)
    raise typer.Exit(report.close([node.name for node in access.nodes], status))


def _request(ctx: typer.Context, reference: str, rank: int | None, program: str | None) -> AccessResource:
    """Request access from the service, whose audit gets only the name of the program."""
    with make_client(ctx) as client:
        name = None if program is None else program_name(program)
        return client.access(find_job(client, reference).id, name, rank=rank)


def program_name(program: str) -> str:
    """Return the last part of a program's path, as a line of text."""
    name = os.path.basename(program) or program
    return "".join(c if c.isprintable() else "?" for c in name)[:_MAX_NAME]


def _require_here(access: AccessResource, arguments: list[str]) -> None:
    """Print the command as a line and exit if it cannot run on this machine by this account."""
    reason = reason_here(access)
    if reason is not None:
        print_error(f"note: {reason}")
        # Not as a sanitized line: a shell must be able to read the printed line.
        sys.stdout.write(shlex.join(arguments) + "\n")
        raise typer.Exit(ELSEWHERE)


@dataclass
class _Node:
    """The output of a node."""

    pending: dict[str, bytearray] = field(default_factory=dict)
    """With --json all output, else the output after the last line break."""
    truncated: bool = False
    end: CommandEnd | None = None


@dataclass
class NodeReport:
    """Prints the output of each node as it arrives, in lines; with --json an object for each node."""

    as_json: bool = False
    _nodes: dict[str, _Node] = field(default_factory=dict)

    def receive(self, line: bytes) -> None:
        """Handle a line of the nodes' records."""
        record = parse_record(line)
        if record is None:
            print_error(line.decode(errors="replace"))
        elif isinstance(record, CommandEnd):
            self._end(record)
        else:
            self._add(*record)

    def close(self, expected: list[str], status: int) -> int:
        """Report the nodes whose end is missing, and return the exit code.

        Args:
            expected: The nodes of the command.
            status: The exit status of the program that ran it on the nodes.
        """
        ends = [node.end for node in self._nodes.values() if node.end is not None]
        missing = [name for name in expected if not self._has_ended(name)]
        for name in missing:
            self._flush(name)
            print_error(f"{name}: the command has no end there: its job or node has ended, or the step was cancelled")
        return max([*(end.exit_code for end in ends), status, FAILED if missing else 0])

    def _has_ended(self, name: str) -> bool:
        node = self._nodes.get(name[:64])
        return node is not None and node.end is not None

    def _add(self, record: CommandOutput, data: bytes) -> None:
        node = self._nodes.setdefault(record.node, _Node())
        pending = node.pending.setdefault(record.stream, bytearray())
        if self.as_json:
            space = _MAX_COLLECTED - len(pending)
            node.truncated = node.truncated or len(data) > space
            pending += data[:space]
            return
        *lines, rest = bytes(pending + data).split(b"\n")
        for line in lines:
            self._print(record.node, record.stream, line)
        while len(rest) > _MAX_LINE:
            self._print(record.node, record.stream, rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        node.pending[record.stream] = bytearray(rest)

    def _end(self, end: CommandEnd) -> None:
        node = self._nodes.setdefault(end.node, _Node())
        node.end = end
        self._flush(end.node)
        if self.as_json:
            return
        if end.timed_out:
            print_error(f"{end.node}: the command was ended, since it took too long")
        elif end.message:
            print_error(f"{end.node}: {end.message}")

    def _flush(self, name: str) -> None:
        node = self._nodes.setdefault(name, _Node())
        if self.as_json:
            texts = {
                stream: node.pending.get(stream, bytearray()).decode(errors="replace")
                for stream in ("stdout", "stderr")
            }
            end = node.end
            print_json(
                {
                    "object": "command_result",
                    "node": name,
                    "exit_code": end.exit_code if end else None,
                    "timed_out": end is not None and end.timed_out,
                    "message": end.message if end else "the command has no end on this node",
                    "truncated": node.truncated,
                    **texts,
                }
            )
            return
        for stream, rest in node.pending.items():
            if rest:
                self._print(name, "stderr" if stream == "stderr" else "stdout", bytes(rest))
        node.pending.clear()

    def _print(self, name: str, stream: Literal["stdout", "stderr"], line: bytes) -> None:
        text = f"{name}: {sanitize(line.decode(errors='replace'))}"
        (print_error if stream == "stderr" else print_line)(text)
