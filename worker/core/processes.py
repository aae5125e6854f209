"""Processes by number: children, signals, and death with the parent. Linux's /proc; elsewhere nothing is found."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PARENT = "TRAINYARD_PARENT"
"""The variable in which torchrun leaves its pid: a rank that starts after its death would not miss it otherwise."""

_PR_SET_PDEATHSIG = 1
_CGROUPS = Path("/sys/fs/cgroup")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that went; at once if it is already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def descendants(pid: int) -> list[tuple[int, int]]:
    """All processes below `pid` as (pid, start time): a number that was given to another process is not mistaken."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(entry)
        if fields:
            children.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[19])))
    found: list[tuple[int, int]] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [child for child, _ in below]
    return found


def children(pid: int) -> list[int]:
    """The direct children of `pid`."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if (f := _stat(entry)) and int(f[1]) == pid]


def variable(pid: int, name: str) -> str | None:
    """What a process of ours found in its environment when it started."""
    try:
        content = (Path("/proc") / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{name}=".encode()
    return next((part[len(prefix) :].decode() for part in content.split(b"\0") if part.startswith(prefix)), None)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_remaining(known: Iterable[tuple[int, int]]) -> None:
    """SIGKILL those of the known processes that are still the same ones."""
    for pid, started in known:
        fields = _stat(Path("/proc") / str(pid))
        if fields and int(fields[19]) == started:
            send([pid], signal.SIGKILL)


def _stat(entry: Path) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, which may hold blanks and parentheses itself."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def count_oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """Processes killed in this cgroup so far because it was out of memory; 0 where the kernel does not tell."""
    for path in _counters(membership, root):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _counters(membership: Path, root: Path) -> list[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(root / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
            # Inside a container the group's own folder may be mounted as the root.
            found.append(root / "memory" / "memory.oom_control")
    return found
