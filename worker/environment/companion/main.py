"""Enters the environment of a rank on this node, for a shell or for one command.

The program gets the rank's variables at its start, working folder, and interpreter or a separate container. It gets no
secrets, and no variables with which it would act as the rank.
"""

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.job_access import format_end
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.companion.rank import (
    NODE_VARIABLE,
    companion_variables,
    find_rank,
    node_of,
    with_interpreter,
    working_folder,
)
from worker.environment.companion.relay import Relay, standard_output
from worker.environment.prepare import names_environment
from worker.environment.prepared import read_prepared

FAILED = 125
"""The exit code if the shell cannot start; shells themselves do not use it."""
_CONTAINER = "worker.environment.companion.container"
_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash --noprofile --norc -i; fi; exec sh -i"
"""The shell reads no files of the account, which would change the environment."""


class NoEntryError(Exception):
    """The environment of the rank cannot be entered, for the reason in the message."""


@dataclass(frozen=True)
class Entry:
    """The environment of a program beside a rank."""

    rank: int
    variables: Mapping[str, str]
    folder: Path
    plan: str
    """The file with the plan of the rank's container. Empty: none."""

    def command(self, kind: str, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs the program in the environment of the rank."""
        if not self.plan:
            return argv
        return (sys.executable, "-P", "-m", _CONTAINER, self.plan, kind, *argv)


def main(arguments: Sequence[str]) -> int:
    """Run a shell or a command; return the exit status."""
    options, argv = _parse(arguments)
    node = os.environ.get(NODE_VARIABLE)
    shown = node or socket.gethostname()
    try:
        entry = _enter(AttemptLayout(Path(options.folder)), node, options.rank)
    except NoEntryError as error:
        if options.kind == "shell":
            print(f"trainyard: {error}", file=sys.stderr)
        else:
            print(format_end(shown, FAILED, message=str(error)).decode(), end="", flush=True)
        return FAILED if options.kind == "shell" else 0
    if options.kind == "shell":
        _execute_shell(entry, shown)
    command = entry.command("exec", argv)
    Relay(shown, standard_output()).run(command, entry.variables, entry.folder, options.timeout)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    head, argv = list(arguments), []
    if "--" in head:
        position = head.index("--")
        head, argv = head[:position], head[position + 1 :]
    parser = argparse.ArgumentParser(prog="python -m worker.environment.companion", allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("kind", choices=("shell", "exec"))
    parser.add_argument("--rank", type=int)
    parser.add_argument("--timeout", type=float)
    options = parser.parse_args(head)
    if (options.kind == "exec") != bool(argv):
        parser.error("a command after -- is required for `exec`, and not allowed for `shell`")
    return options, argv


def _enter(layout: AttemptLayout, node: str | None, rank: int | None) -> Entry:
    host = node or socket.gethostname()
    try:
        launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
    except (OSError, ValueError) as error:
        raise NoEntryError(f"{layout.launch} cannot be read on {host}: {error}") from None
    process = find_rank(launch.attempt_id, node if launch.nodes > 1 else None, rank)
    if process is None:
        running = "no rank runs" if rank is None else f"rank {rank} does not run"
        raise NoEntryError(f"{running} on {host} as this account now: the job starts, restarts or ends; try again")
    os.umask(launch.umask)
    folder = working_folder(layout, launch)
    try:
        interpreter, plan = _prepared(layout, launch, process.rank)
        os.chdir(folder)
    except (OSError, ValueError, KeyError) as error:
        raise NoEntryError(f"the environment of rank {process.rank} cannot be entered on {host}: {error}") from None
    secrets = launch.spec.environment.secrets
    variables = companion_variables(process.variables, secrets, os.environ, interpreter)
    if not plan:
        variables["PATH"] = with_interpreter(variables.get("PATH", os.defpath), interpreter)
    return Entry(process.rank, variables, folder, plan)


def _prepared(layout: AttemptLayout, launch: LaunchDocument, rank: int) -> tuple[str, str]:
    """Return the interpreter of a rank and the plan of its container."""
    if not names_environment(launch):
        return sys.executable, ""
    prepared = read_prepared(layout.rank_environment(node_of(layout, launch, rank)))
    return prepared.interpreter, prepared.container


def _execute_shell(entry: Entry, node: str) -> NoReturn:
    variables = {**entry.variables, "PS1": f"(rank {entry.rank} on {node}) \\W\\$ "}
    command = entry.command("shell", ("/bin/sh", "-c", _SHELL))
    try:
        os.execve(command[0], list(command), variables)  # noqa: S606 (the text is constant)
    except OSError as error:
        print(f"trainyard: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)
