"""The state of a rank's process, from Linux's /proc: evidence for why it makes no progress. Elsewhere it is unknown."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from worker.core.processes import name_of, processor_seconds, start_time, thread_states

_PROC = Path("/proc")
_STOPPED, _UNINTERRUPTIBLE = frozenset("Tt"), "D"
_BY_DESCRIPTOR = frozenset({0, 1, 17, 18, 19, 20, 44, 45, 46, 47, 74, 75, 295, 296})
"""Calls of x86_64 whose first argument is a descriptor: read, write, their variants, send, recv, fsync, fdatasync."""
_BY_PATH = {2: 0, 4: 0, 6: 0, 21: 0, 87: 0, 257: 1, 262: 1, 332: 1}
"""Calls of x86_64 with a path, and the path's argument: open, stat, access, unlink, openat, newfstatat, statx."""
Call = Literal["", "lock", "sleep", "child", "events"]
_EVENTS = frozenset({7, 23, 232, 270, 271, 281})
_CALLS: Mapping[int, Call] = MappingProxyType(
    {202: "lock", 35: "sleep", 230: "sleep", 61: "child", 247: "child", **dict.fromkeys(_EVENTS, "events")}
)
"""Calls of x86_64 without a descriptor: futex; nanosleep; wait4, waitid; poll, select, epoll_wait, their variants."""
_MAX_PATH = 256
_LINE_SECONDS = 3.0
"""How long py-spy may take; it reads all ranks of a node at the same time."""


class RankState(BaseModel):
    """What a rank's process did while it was observed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    host: str = ""
    pid: int = 0
    state: str = ""
    """The kernel's letter for the main thread, or `D` if any thread is in uninterruptible sleep; empty: unknown."""
    has_ended: bool = False
    waits_for: str = ""
    """The file, pipe or socket in whose call the thread is; empty: in none, or not readable."""
    call: Call = ""
    """What the thread waits for in its call: a lock or a condition, a time, a child process, one of several files."""
    command: str = ""
    """The name of the process."""
    line: str = ""
    """The line of Python that the main thread is in, if py-spy could read it."""
    processor_share: float = 0.0
    """Processor seconds of the process per second of the observation."""

    @property
    def is_stopped(self) -> bool:
        return self.state in _STOPPED

    @property
    def in_lock(self) -> bool:
        return self.call == "lock"

    @property
    def is_uninterruptible(self) -> bool:
        return self.state == _UNINTERRUPTIBLE


def read_state(
    rank: int, host: str, pid: int, started: int | None, used: float, seconds: float, line: str = ""
) -> RankState:
    """Return the state of a process that has been observed for a while.

    Args:
        started: The start time of the process when the observation began.
        used: The processor time of the process when the observation began, in seconds.
        seconds: The duration of the observation.
    """
    if start_time(pid) is None or start_time(pid) != started:
        return RankState(rank=rank, host=host, pid=pid, has_ended=True)
    threads = thread_states(pid)
    blocked = next((thread for thread, state in threads.items() if state == _UNINTERRUPTIBLE), pid)
    number, arguments = _call(pid, blocked)
    return RankState(
        rank=rank,
        host=host,
        pid=pid,
        state=threads.get(blocked, ""),
        waits_for=_waits_for(pid, number, arguments),
        call=_CALLS.get(number, "") if os.uname().machine == "x86_64" else "",
        command=name_of(pid),
        line=line,
        processor_share=max(0.0, processor_seconds(pid) - used) / seconds if seconds > 0 else 0.0,
    )


def _call(pid: int, thread: int) -> tuple[int, list[int]]:
    """Return number and arguments of the system call in which a thread is; -1 where none is, or it is not readable."""
    try:
        fields = (_PROC / str(pid) / "task" / str(thread) / "syscall").read_text().split()
        return int(fields[0]), [int(word, 16) for word in fields[1:7]]
    except (OSError, ValueError, IndexError):
        return -1, []


def _waits_for(pid: int, number: int, arguments: list[int]) -> str:
    if not arguments or os.uname().machine != "x86_64":
        return ""
    with contextlib.suppress(OSError, ValueError):
        if number in _BY_DESCRIPTOR:
            return os.readlink(_PROC / str(pid) / "fd" / str(arguments[0]))[:_MAX_PATH]
        if number in _BY_PATH:
            with (_PROC / str(pid) / "mem").open("rb") as memory:
                memory.seek(arguments[_BY_PATH[number]])
                return memory.read(_MAX_PATH).split(b"\0")[0].decode(errors="replace")
    return ""


class LineReader:
    """Reads the line of Python that a process is in by py-spy, which neither stops nor changes the process.

    py-spy is optional, and reads nothing where the site does not permit it, or where the process is no Python.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._until = time.monotonic() + _LINE_SECONDS
        self._process: subprocess.Popen[bytes] | None = None
        if program := shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts")):
            command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )

    def close(self) -> str:
        """Return the line as `train.py:88 in load`, or `train.py:88` outside of functions; empty if it is not known."""
        if self._process is None:
            return ""
        try:
            output, _ = self._process.communicate(timeout=max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return ""
        with contextlib.suppress(ValueError, LookupError, TypeError):
            return _own_line(json.loads(output), self._pid)
        return ""


def _own_line(threads: list[dict[str, Any]], pid: int) -> str:
    """Return the innermost line of the main thread outside Python and its packages, else the innermost line."""
    frames = next(thread["frames"] for thread in threads if thread["os_thread_id"] == pid)
    own = [frame for frame in frames if not _is_installed(frame["filename"])]
    frame = (own or frames)[0]
    function = "" if frame["name"] == "<module>" else f" in {frame['name']}"
    return f"{frame['short_filename']}:{frame['line']}{function}"


def _is_installed(path: str) -> bool:
    return path.startswith("<") or f"/python{sys.version_info.major}." in path or "-packages/" in path
