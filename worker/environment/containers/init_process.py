"""The first process in a container: starts the rank there, with the variables, signals and end that the node sends.

Run as `python3 -I init_process.py` by the Python of the image, which has nothing of ours: one file of the standard
library, for Python 3.9 and newer. The first line of the standard input is a JSON document; each further line is the
number of a signal for the rank. The end of the input means that the process on the other side has ended, by whatever
signal, and with it the rank: nothing else that crosses the boundary of every container runtime reports that.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Start the rank of the document, and end as it ends."""
    for number in _FORWARDED:
        # Runtimes and schedulers signal this process, too; the rank gets each signal once, by the input. It inherits
        # that signals are ignored, until it handles them.
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit("the process on the node has ended before the rank started")
    document = json.loads(line)
    os.umask(document["umask"])
    try:
        rank = subprocess.Popen(
            document["argv"],
            env={**os.environ, **document["variables"]},
            cwd=document["folder"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_this_process(),
        )
    except OSError as error:
        sys.exit(f"the rank cannot start in the container: {error}")
    threading.Thread(target=_follow_input, args=(rank.pid,), daemon=True).start()
    status = _wait(rank.pid)
    # As shells do: the first process of a namespace cannot kill itself by a signal.
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _end_with_this_process() -> Callable[[], None]:
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def _follow_input(rank: int) -> None:
    """Forward signals to the rank until the input ends, and then kill its process group."""
    while (line := sys.stdin.buffer.readline()).endswith(b"\n"):
        with contextlib.suppress(OSError):
            os.kill(rank, int(line))
    with contextlib.suppress(OSError):
        os.killpg(rank, signal.SIGKILL)


def _wait(rank: int) -> int:
    """Return the wait status of the rank; the rest of its process group is killed."""
    while True:
        # The rank stays a zombie, so that no other process gets its number before the group is killed.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_pid == rank:
            break
        # The first process of a namespace inherits orphans.
        os.waitpid(ended.si_pid, 0)
    with contextlib.suppress(OSError):
        os.killpg(rank, signal.SIGKILL)
    return os.waitpid(rank, 0)[1]


if __name__ == "__main__":
    main()
