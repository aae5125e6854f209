"""The start of a rank in an environment of the spec: the interface that each kind of environment implements.

A rank begins as a small process in the service's Python, and then executes the command of its environment, as the same
process. Without an environment in the spec it goes on in the service's Python.
"""

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

RANK_ENVIRONMENT_VARIABLE = "TRAINYARD_RANK_ENVIRONMENT"
"""The variable with the path of the node's prepared environment. A rank that has it executes the command of that
environment; the command's own environment is without it."""


@dataclass(frozen=True)
class RankCommand:
    """A command that a process executes in the environment of the ranks."""

    argv: tuple[str, ...]
    """Program and arguments; the program is an absolute path."""
    variables: Mapping[str, str]
    """All environment variables of the process."""


class RankEnvironment(Protocol):
    """An environment in which ranks run, such as another interpreter or a container."""

    def command(self, arguments: Sequence[str], variables: Mapping[str, str], folder: Path) -> RankCommand:
        """Return the command that runs the environment's Python.

        Args:
            arguments: The interpreter's arguments: `-m worker <attempt folder>`, or a program and its arguments.
            variables: The variables with which torchrun starts the rank, and the spec's variables.
            folder: The working directory; the caller has changed to it.
        """
        ...


STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1)
_ENDING_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that Python ignores at its start, or that `nohup` and `&` of a shell leave ignored for the service."""


def execute(command: RankCommand, not_ignored: Collection[signal.Signals] = ()) -> NoReturn:
    """Replace this process with the command. Signals that ask ranks to stop are ignored until it handles them; other
    signals have their default effect, as in a shell."""
    for number in (*STOP_SIGNALS, *_ENDING_SIGNALS):
        is_ignored = number in STOP_SIGNALS and number not in not_ignored
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.argv[0], command.argv, command.variables)  # noqa: S606 (no shell on the way)
