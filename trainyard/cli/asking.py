"""Asking a person before something is gone."""

import sys

from trainyard.cli.failures import UsageError
from trainyard.cli.output import complain


def agrees(question: str) -> bool:
    """Whether the answer on standard input is yes; an empty line is no.

    Raises:
        UsageError: nobody is there to answer.
        KeyboardInterrupt: the answer was Ctrl-C.
    """
    print(f"{question} [y/N]: ", end="", flush=True)
    try:
        answer = sys.stdin.readline() if sys.stdin is not None else ""
    except KeyboardInterrupt:
        print()
        complain("interrupted; it is not deleted")
        raise
    if not answer:
        print()
        raise UsageError("nobody answers on standard input; --yes deletes without asking")
    return answer.strip().lower() in {"y", "yes"}
