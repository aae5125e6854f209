"""The first process in a container: starts a program there, with the variables, signals and end that the node sends.

Run as `python3 -I init_process.py [control]` by the Python of the image, which has none of our packages: a single file
that needs only the standard library of Python 3.9 or newer. The first line of the control input is a JSON document;
each further line is the number of a signal for the program. At the end of the input, the process on the other side has
ended, by any signal, and the program is killed. No other sign of the end crosses every runtime's boundary.

The control input is the standard input, and the program has no input. If the argument is the path of a named pipe, the
control input is that pipe, and the program has the terminal.
"""

import contextlib
import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU)


def main(pipe: str = "") -> None:
    """Start the program of the document, and end as it ends."""
    for number in (*_FORWARDED, *(_OF_THE_TERMINAL if pipe else ())):
        # Runtimes, schedulers and terminals signal this process, too. The program gets each signal once, by the input
        # or by the terminal.
        signal.signal(number, signal.SIG_IGN)
    control = _open_pipe(pipe) if pipe else sys.stdin.buffer
    line = control.readline()
    if not line.endswith(b"\n"):
        sys.exit("the process on the node has ended before the program started")
    document = json.loads(line)
    os.umask(document["umask"])
    try:
        program = subprocess.Popen(
            document["argv"],
            env={**os.environ, **temporary_variable(), **document["variables"]},
            cwd=document["folder"],
            stdin=None if pipe else subprocess.DEVNULL,
            start_new_session=not pipe,
            # Ranks inherit that signals are ignored, until they handle them.
            preexec_fn=_end_with_this_process(() if document["ignores_signals"] else (*_FORWARDED, *_OF_THE_TERMINAL)),
        )
    except OSError as error:
        sys.exit(f"{document['argv'][0]} cannot start in the container: {error}")
    kill = _kill_process if pipe else _kill_group
    threading.Thread(target=_follow_input, args=(control, program.pid, kill), daemon=True).start()
    status = _wait(program.pid, kill)
    # Shells do the same: the first process of a namespace cannot kill itself by a signal.
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def temporary_variable() -> "dict[str, str]":
    """Return the variable with a folder for temporary files that other accounts cannot enter; nothing if there is none.

    Libraries use known names there: torch runs code from `torchinductor_<account>`, which others could make first.
    """
    try:
        parent = tempfile.gettempdir()
        folder = os.path.join(parent, f"trainyard-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        return {"TMPDIR": folder if is_private else tempfile.mkdtemp(prefix="trainyard-")}
    except OSError:
        return {}


def _open_pipe(path: str) -> BinaryIO:
    """Open the named pipe without waiting for a writer: it opened the pipe before this process, or has ended."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def _end_with_this_process(defaults: "tuple[signal.Signals, ...]") -> Callable[[], None]:
    """Return the function that the child calls before it executes the program.

    Args:
        defaults: Signals whose handling the program gets reset to the default.
    """
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def before_exec() -> None:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def _follow_input(control: BinaryIO, program: int, kill: Callable[[int], None]) -> None:
    """Forward signals to the program until the input ends, and then kill it."""
    while (line := control.readline()).endswith(b"\n"):
        with contextlib.suppress(OSError):
            os.kill(program, int(line))
    kill(program)


def _kill_group(program: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(program, signal.SIGKILL)


def _kill_process(program: int) -> None:
    """End a program on the terminal: a shell passes the first signal to the programs that it runs."""
    for number in (signal.SIGHUP, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.kill(program, number)


def _wait(program: int, kill: Callable[[int], None]) -> int:
    """Return the wait status of the program; `kill` ends the rest of it."""
    while True:
        # The program stays a zombie, so that no other process gets its number before its group is killed.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_pid == program:
            break
        # The first process of a namespace inherits orphans.
        os.waitpid(ended.si_pid, 0)
    kill(program)
    return os.waitpid(program, 0)[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
