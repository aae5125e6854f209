"""Replaces a process of the ranks' Python by any command. Its text is given to that Python, which has no Trainyard."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys

PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
CLEARING = ("-", "-i", "--ignore-environment")
"""Options of `env`."""
_OF_LAUNCHER = re.compile(
    r"(TRAINYARD|TORCHELASTIC|MASTER|ROLE|MLFLOW|WANDB)_.*|((LOCAL|GROUP)_)?(RANK|WORLD_SIZE)|.*_VISIBLE_DEVICES"
    r"|no_proxy|NO_PROXY|PYTHONUNBUFFERED|TMPDIR"
)
"""Variables of the job: its folders, its ranks, its GPUs and its trackers."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of a shell."""
_SHELL = "/bin/sh"
_FIRST_BYTES = 80
"""Bytes of a file by which bash decides whether it is a text."""


def main(command: list[str]) -> None:
    """Execute the command. `python` is the interpreter of this process; its folder is the first of the search path."""
    command = set_variables(command)
    own = os.path.dirname(os.path.abspath(sys.executable))
    others = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != own]
    os.environ["PATH"] = os.pathsep.join([own, *others])
    program = sys.executable if PYTHON_NAME.fullmatch(command[0]) else command[0]
    sys.stdout.flush()
    # Python ignores them, and the command would inherit that: `yes | head` would report a broken pipe.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
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
        script = _script_of(program) if error.errno == errno.ENOEXEC else None
        if script:
            os.execv(_SHELL, [_SHELL, script, *command[1:]])  # noqa: S606 (as shells do)
        print(f"{command[0]!r} cannot be executed: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_EXECUTABLE)


def _script_of(program: str) -> str | None:
    """Return the path of an executable text without a first line `#!`, which shells execute by `sh`; None: a binary."""
    folders = [""] if "/" in program else os.environ["PATH"].split(os.pathsep)
    paths = (os.path.join(folder, program) for folder in folders)
    path = next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)
    if path is None:
        return None
    with open(path, "rb") as file:
        return None if b"\0" in file.read(_FIRST_BYTES) else path


def without_variables(command: list[str]) -> list[str]:
    """Return the command without each `env` before it and its variables. `env` with other options than `-i` stays."""
    if os.path.basename(command[0]) != "env":
        return command
    rest = command[1:]
    while rest and rest[0] in CLEARING:
        rest = rest[1:]
    while rest and rest[0].find("=") > 0:
        rest = rest[1:]
    return command if not rest or rest[0].startswith("-") else without_variables(rest)


def set_variables(command: list[str]) -> list[str]:
    """Set the variables that `env` would set, and return the rest of the command.

    PYTHONPATH keeps the folder of the launcher as its first entry, since the program's hook is there. `env -i` leaves
    what the launcher has set.
    """
    rest = without_variables(command)
    for word in command[: len(command) - len(rest)]:
        name, equals, value = word.partition("=")
        if word in CLEARING:
            _clear()
        elif equals:
            _set(name, value)
    return rest


def _set(name: str, value: str) -> None:
    if name == "PYTHONPATH":
        first, *others = os.environ.get(name, "").split(os.pathsep)
        own = [os.path.abspath(entry) for entry in value.split(os.pathsep)] if value else []
        value = os.pathsep.join(filter(None, [first, *own, *others]))
    os.environ[name] = value


def _clear() -> None:
    """Remove the variables that a shell would have, too."""
    hook = os.environ.get("PYTHONPATH", "").split(os.pathsep)[0]
    for name in [name for name in os.environ if not _OF_LAUNCHER.fullmatch(name)]:
        del os.environ[name]
    if hook:
        os.environ["PYTHONPATH"] = hook


if __name__ == "__main__":
    main(sys.argv[1:])
