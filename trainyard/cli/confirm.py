"""Confirmation before a command deletes something."""

import typer

from trainyard.cli.errors import UsageError
from trainyard.cli.output import print_error


def confirm_deletion(question: str) -> bool:
    """Ask for confirmation on the terminal; an empty answer means no.

    Raises:
        UsageError: standard input is closed.
        KeyboardInterrupt: the answer was Ctrl-C.
    """
    try:
        return typer.confirm(question)
    except typer.Abort as aborted:
        print()
        if isinstance(aborted.__context__, EOFError):
            raise UsageError("no answer on standard input; use --yes to delete without a prompt") from None
        print_error("interrupted; not deleted")
        raise KeyboardInterrupt from None
