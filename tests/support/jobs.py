"""Jobs that the local scheduler runs in its tests instead of the launcher. Each gets the attempt's folder.

A job reports through files: `began` (its first line; the text is the time), `ran` (a line a run), `signals`
(a line a SIGTERM), `pids` (a line for each of its processes), `finished` (it came to its end).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MAX_SECONDS = 120.0
"""Seconds after which an abandoned job ends; longer than any test."""


def _begin(folder: Path) -> None:
    (folder / "began.part").write_text(str(time.time()))
    (folder / "began.part").rename(folder / "began")
    _append_line(folder, "ran", str(os.getpid()))
    _append_line(folder, "pids", str(os.getpid()))


def _append_line(folder: Path, name: str, line: str) -> None:
    with (folder / name).open("a") as file:
        file.write(line + "\n")


def _sleep(folder: Path) -> None:
    """Wait until the folder has a file `go`."""
    deadline = time.monotonic() + MAX_SECONDS
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def wait(argument: str) -> None:
    """Run until the file `go` exists; the first SIGTERM ends the job."""
    folder = Path(argument)

    def stop(number: int, _frame: object) -> None:
        _append_line(folder, "signals", signal.Signals(number).name)
        (folder / "go").touch()

    signal.signal(signal.SIGTERM, stop)
    _begin(folder)
    _sleep(folder)
    _append_line(folder, "finished", "by itself")


def stubborn(argument: str) -> None:
    """Ignore SIGTERM, and start descendants that ignore it too, one of them in a session of its own."""
    folder = Path(argument)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for arguments in ([], ["--session"], ["--fork"]):
        child = [sys.executable, "-m", "tests.support.jobs", str(folder), *arguments]
        subprocess.Popen(child, start_new_session="--session" in arguments)
    _begin(folder)
    _sleep(folder)


def leave_orphans(argument: str) -> None:
    """Exit immediately, but leave a process in a session of its own."""
    folder = Path(argument)
    subprocess.Popen([sys.executable, "-m", "tests.support.jobs", str(folder), "--session"], start_new_session=True)
    _begin(folder)
    while not (folder / "grandchild").exists():
        time.sleep(0.01)


def environment(argument: str) -> None:
    """Write the environment and arguments of the job to a file."""
    folder = Path(argument)
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))
    _begin(folder)


def fail(argument: str) -> None:
    """Exit with an error."""
    folder = Path(argument)
    _begin(folder)
    raise RuntimeError("meant to fail")


def _grandchild(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if "--fork" in sys.argv and os.fork():
        os._exit(0)
    _append_line(folder, "pids", str(os.getpid()))
    (folder / "grandchild").touch()
    _sleep(folder)


if __name__ == "__main__":
    _grandchild(Path(sys.argv[1]))
