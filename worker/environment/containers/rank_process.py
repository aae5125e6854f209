"""A rank's process on the node: runs its container, and stands for the rank in it toward torchrun.

It sends variables and signals through the standard input of the container's first process (`init_process`), and ends as
the rank ends. If this process is killed, the input ends, and the container with it, even if it is the child of a
daemon. Imports next to nothing, since each rank has such a process.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from worker.core.processes import WRAPPED_VARIABLE
from worker.environment.containers.variables import container_variables, runtime_variables
from worker.environment.program_hook import ERROR_FILE

PYTHON = "python3"
"""The interpreter of an image."""
_MAX_ERROR_BYTES = 1024 * 1024
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(plan: Path, arguments: Sequence[str]) -> NoReturn:
    """Run the image's Python with the arguments, in the current folder, and end as it ends.

    Args:
        plan: The file with the node's `ContainerPlan`.
    """
    document = json.loads(plan.read_text())
    own = set(document["names"])
    errors = plan.parent / f"error-{os.environ.get('RANK', '')}.json"
    variables = container_variables(os.environ, own) | document["rank_variables"]
    variables |= {WRAPPED_VARIABLE: "1", ERROR_FILE: str(errors)}
    environ = runtime_variables(os.environ, own) | document["runtime_variables"]
    try:
        status = run_container(document["argv"], environ, [PYTHON, *arguments], variables, Path.cwd())
    except OSError as error:
        sys.exit(f"the container cannot start: {error}")
    if original := os.environ.get(ERROR_FILE):
        _copy_error(errors, Path(original))
    end_as(status)


def run_container(
    argv: Sequence[str],
    environ: dict[str, str],
    command: Sequence[str],
    variables: dict[str, str],
    folder: Path,
    *,
    ignores_signals: bool = True,
) -> int:
    """Run a command in a container, and return its exit code; negative: the number of the signal that ended it. Signals
    that this process gets are forwarded.

    Args:
        argv: The command line of the runtime.
        environ: The variables of the runtime.
        variables: The variables of the command.
        ignores_signals: Whether the command ignores the signals that are forwarded, until it handles them.

    Raises:
        OSError: The runtime cannot be started.
    """
    program = find_program(argv, environ)
    # Not with PR_SET_PDEATHSIG: where the runtime becomes the first process in the container, it must live long enough
    # to kill the rank's whole process group.
    process = subprocess.Popen([program, *argv[1:]], env=environ, stdin=subprocess.PIPE)
    assert process.stdin is not None
    # A runtime that cannot start the container ends without reading.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(control_document(command, variables, folder, ignores_signals=ignores_signals))
        process.stdin.flush()
    # A rank also gets the signal of a keyboard where the spec wants it as a warning.
    _forward_signals(process.stdin.fileno(), (*_FORWARDED, signal.SIGINT) if ignores_signals else _FORWARDED)
    # The input stays open until this process ends, however it ends.
    return exit_code(process.wait())


def control_document(
    command: Sequence[str], variables: dict[str, str], folder: Path, *, ignores_signals: bool
) -> bytes:
    """Return the first line of the control input of the container's first process."""
    document = {
        "argv": [*command],
        "variables": variables,
        "folder": str(folder),
        "umask": _umask(),
        "ignores_signals": ignores_signals,
    }
    return json.dumps(document).encode() + b"\n"


def find_program(argv: Sequence[str], environ: dict[str, str]) -> str:
    """Return the path of a runtime's program.

    Raises:
        OSError: The program is not on the PATH.
    """
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"there is no program `{argv[0]}` on the PATH of this node")
    return program


def end_as(status: int) -> NoReturn:
    """End this process as another process ended: with its exit code, or by its signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


def _forward_signals(fd: int, numbers: Sequence[int]) -> None:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(fd, b"%d\n" % number)

    for number in numbers:
        signal.signal(number, forward)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def exit_code(status: int) -> int:
    """Return a runtime's exit code with a signal as a negative number: runtimes report it like shells do."""
    number = status - 128
    return -number if number in {*signal.valid_signals()} else status


def _copy_error(source: Path, target: Path) -> None:
    """Copy the program's error file of torchrun (`@record`) to the host's, which the container does not see."""
    with contextlib.suppress(OSError):
        with source.open("rb") as file:
            content = file.read(_MAX_ERROR_BYTES)
        source.unlink()
        target.write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
