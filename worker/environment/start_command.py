"""Replaces a process of the ranks' Python by any command. Its text is given to that Python, which has no Trainyard."""

from __future__ import annotations

import os
import re
import sys

PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of a shell."""


def main(command: list[str]) -> None:
    """Execute the command. `python` is the interpreter of this process; its folder is the first of the search path."""
    own = os.path.dirname(os.path.abspath(sys.executable))
    others = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    os.environ["PATH"] = os.pathsep.join([own, *others])
    program = sys.executable if PYTHON_NAME.fullmatch(command[0]) else command[0]
    sys.stdout.flush()
    try:
        os.execvp(program, [program, *command[1:]])  # noqa: S606 (no shell on the way)
    except FileNotFoundError:
        if "/" not in program:
            print(f"The search path is {os.environ['PATH']}", file=sys.stderr)
            problem = "is not on the search path of this node"
        elif os.path.exists(program):
            problem = "names an interpreter in its first line that is not on this node"
        else:
            problem = "is not on this node"
        print(f"{command[0]!r} {problem}", file=sys.stderr)
        sys.exit(NOT_FOUND)
    except OSError as error:
        print(f"{command[0]!r} cannot be executed: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_EXECUTABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
