"""Processes: children, signals, death with the parent, out-of-memory kills. Uses Linux's /proc; elsewhere nothing is
returned."""

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

PARENT_VARIABLE = "TRAINYARD_PARENT"
"""The variable with torchrun's pid, so that a rank notices if torchrun died before the rank started."""
STORE_VARIABLE = "TRAINYARD_STORE"
"""The variable with the path of the file in which the ranks of a single-node job meet."""
RANK_VARIABLE = "TRAINYARD_RANK"
"""The variable with the number of a rank; a program that is not distributed lacks torchrun's `RANK`."""
WRAPPED_VARIABLE = "TRAINYARD_WRAPPED"
"""The variable that is set where another program runs between torchrun and the ranks."""
SOCKET_VARIABLE = "TRAINYARD_FORK_SERVER"
"""The variable with the path of the socket of the server that forks the ranks."""
FORK_SERVER = "trainyard-forks"
"""The name of that process, a child of torchrun."""
_FORKED = "trainyard-r"
"""The name of a forked rank begins with it, and ends with the rank."""

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_CGROUPS = Path("/sys/fs/cgroup")


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends; exit at once if the parent has ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def descendants(pid: int) -> list[tuple[int, int]]:
    """Return all processes below `pid` as (pid, start time); the start time reveals a reused pid."""
    children_of = children if _lists_children() else _scan()
    result: list[tuple[int, int]] = []
    waiting = [pid]
    while waiting:
        below = children_of(waiting.pop())
        waiting += below
        result += [(child, int(fields[19])) for child in below if (fields := _stat(_PROC / str(child)))]
    return result


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`.

    The kernel's list of each thread is read, since the launcher needs it several times a second, and a node may have
    thousands of processes. Kernels without CONFIG_PROC_CHILDREN have no such list.
    """
    if not _lists_children():
        return _scan()(pid)
    pids: set[int] = set()
    # Twice: the children of a thread that ends move to another thread, whose list may have been read before.
    for _ in range(2):
        with contextlib.suppress(OSError):
            for thread in (_PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    pids.update(map(int, (thread / "children").read_text().split()))
    return sorted(pids)


def _scan() -> Callable[[int], list[int]]:
    """Read all processes once, and return a function that lists a process's children."""
    pids: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        if fields := _stat(entry):
            pids.setdefault(int(fields[1]), []).append(int(entry.name))
    return lambda pid: pids.get(pid, [])


@functools.cache
def _lists_children() -> bool:
    return (_PROC / "thread-self" / "children").exists()


def environment_variable(pid: int, name: str) -> str | None:
    """Return the value of an environment variable at the start of a process, if it is readable."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{name}=".encode()
    return next((part[len(prefix) :].decode() for part in content.split(b"\0") if part.startswith(prefix)), None)


def rank_of(pid: int) -> int | None:
    """Return the rank that a process is, or that started it; None if that is not readable or there is no such rank."""
    text = environment_variable(pid, RANK_VARIABLE) or ""
    return int(text) if text.isascii() and text.isdigit() else None


def forked_name(rank: int) -> str:
    """Return the name of the process of a forked rank."""
    return f"{_FORKED}{rank}"


def forked_ranks(torchrun: int) -> dict[int, int]:
    """Return the processes of forked ranks by their rank."""
    ranks = {}
    for server in children(torchrun):
        if name_of(server) == FORK_SERVER:
            for pid in children(server):
                text = name_of(pid).removeprefix(_FORKED)
                if text.isascii() and text.isdigit():
                    ranks[int(text)] = pid
    return ranks


def ranks_below(torchrun: int) -> dict[int, int]:
    """Return the process of each rank of this node: a child of torchrun, or a fork that such a child represents."""
    started = {rank: pid for pid in children(torchrun) if (rank := rank_of(pid)) is not None}
    return started | forked_ranks(torchrun)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it has ended."""
    fields = _stat(_PROC / str(pid))
    return int(fields[19]) if fields else None


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all its threads so far; 0 if it has ended."""
    fields = _stat(_PROC / str(pid))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    fields = _stat(_PROC / str(pid))
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def usage(pid: int) -> tuple[float, int]:
    """Return the processor seconds, and the bytes read and written, of a process and its ended children so far; zeros
    if it has ended, and no bytes if its account differs from this one.

    Bytes of sockets count only where the process uses `read` and `write`.
    """
    fields = _stat(_PROC / str(pid))
    seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return seconds, 0
    return seconds, sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))


def thread_states(pid: int) -> dict[int, str]:
    """Return the letter of each thread's state, the main thread first; empty if the process has ended."""
    try:
        threads = sorted(map(int, os.listdir(_PROC / str(pid) / "task")), key=lambda thread: (thread != pid, thread))
    except OSError:
        return {}
    return {thread: fields[0] for thread in threads if (fields := _stat(_PROC / str(pid) / "task" / str(thread)))}


def is_connected_to(pid: int, port: int) -> bool:
    """Return whether a process has a TCP connection to a port of any host."""
    remote = f":{port:04X}"
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows = (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]
            sockets |= {fields[9] for row in rows if (fields := row.split())[2].endswith(remote)}
    if not sockets:
        return False
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry).removeprefix("socket:[").removesuffix("]") in sockets:
                    return True
    return False


def name_of(pid: int) -> str:
    """Return the name of a process, at most 15 characters; empty if it has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_remaining(known: Iterable[tuple[int, int]]) -> None:
    """Kill those processes, given as (pid, start time), that still exist."""
    for pid, started in known:
        fields = _stat(_PROC / str(pid))
        if fields and int(fields[19]) == started:
            send_signal([pid], signal.SIGKILL)


def _stat(entry: Path) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name, which may contain blanks and parentheses."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def count_oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """Return the number of out-of-memory kills in this process's cgroup so far; 0 where the kernel has no counter."""
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
    counters = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            counters.append(root / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            counters.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
            # Inside a container the group's own folder may be mounted as the root.
            counters.append(root / "memory" / "memory.oom_control")
    return counters
