"""Runs a program beside a rank, in a separate container with the same image, mounts and variables.

Run as `python -m worker.environment.companion.container <plan> <shell or exec> <program> ...`, with the variables of a
rank without its secrets.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainyard.contract.spec.containers import Mount
from worker.environment.companion.rank import COMPANION_VARIABLE
from worker.environment.containers.rank_process import (
    PYTHON,
    control_document,
    end_as,
    exit_code,
    find_program,
    run_container,
)
from worker.environment.containers.runtimes import RUNTIMES, ContainerRun, RuntimeCommand
from worker.environment.containers.variables import container_variables, runtime_variables

_TERMINAL = ("TERM", "COLORTERM", "PS1")
_MAX_PIPES = 100


def main(plan: Path, kind: str, command: Sequence[str]) -> None:
    """Run the program in a new container, and end as it ends."""
    document = json.loads(plan.read_bytes())
    own = {*document["names"], COMPANION_VARIABLE, *(_TERMINAL if kind == "shell" else ())}
    variables = container_variables(os.environ, own) | document["rank_variables"]
    environ = runtime_variables(os.environ, own) | document["runtime_variables"]
    try:
        if kind == "shell":
            status = _run_on_terminal(document, plan, environ, command, variables)
        else:
            folder = Path.cwd()
            status = run_container(document["argv"], environ, command, variables, folder, ignores_signals=False)
    except OSError as error:
        sys.exit(f"the container cannot start: {error}")
    end_as(status)


def terminal_command(document: dict[str, Any], init: Path, pipe: Path) -> RuntimeCommand:
    """Return the command line of a container with the terminal.

    Args:
        document: The plan of the node.
        init: The program of the container's first process.
        pipe: Its control input.
    """
    known = {one.name for one in fields(ContainerRun)}
    run: dict[str, Any] = {name: value for name, value in document["run"].items() if name in known}
    run |= {
        "command": (PYTHON, "-I", str(init), str(pipe)),
        "mounts": tuple(Mount(*mount) for mount in run["mounts"]),
        "limits": {name: tuple(limit) for name, limit in run["limits"].items()},
        "terminal": True,
    }
    return RUNTIMES[document["runtime"]](ContainerRun(**run))


def _run_on_terminal(
    document: dict[str, Any], plan: Path, environ: dict[str, str], command: Sequence[str], variables: dict[str, str]
) -> int:
    if not document.get("run"):
        sys.exit("an earlier release of Trainyard started this job, whose container cannot be repeated")
    # The launcher of this node has written the plan.
    init = Path(document["run"]["command"][-1])
    with _named_pipe(plan.parent) as (pipe, handle):
        made = terminal_command(document, init, pipe)
        environ |= made.variables
        for number in (signal.SIGINT, signal.SIGQUIT):
            # The terminal sends these signals to the program, too.
            signal.signal(number, signal.SIG_IGN)
        process = subprocess.Popen([find_program(made.argv, environ), *made.argv[1:]], env=environ)
        content = control_document(command, variables, Path.cwd(), ignores_signals=False)
        # The pipe may have less room than that before the container reads.
        threading.Thread(target=_write, args=(handle, content), daemon=True).start()
        return exit_code(process.wait())


@contextmanager
def _named_pipe(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield a new named pipe, opened for both directions: it ends for its reader when this process ends."""
    _remove_unused(folder)
    path = folder / f"control-{os.getpid()}-{secrets.token_hex(6)}"
    os.mkfifo(path, 0o600)
    try:
        yield path, os.open(path, os.O_RDWR | os.O_CLOEXEC)
    finally:
        path.unlink(missing_ok=True)


def _remove_unused(folder: Path) -> None:
    """Remove pipes that killed processes have left, except the newest, which another node may use."""
    pipes = sorted(folder.glob("control-*"), key=lambda path: path.lstat().st_mtime)
    for path in pipes[:-_MAX_PIPES]:
        path.unlink(missing_ok=True)


def _write(handle: int, content: bytes) -> None:
    with contextlib.suppress(OSError):
        while content:
            content = content[os.write(handle, content) :]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
