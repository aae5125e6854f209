"""CPU time of the processes that a benchmark starts: on a shared machine it is more reliable than the clock."""

import psutil


def children_cpu_seconds() -> float:
    """Return the CPU seconds of this process's running descendants."""
    return sum(_cpu_seconds(process) for process in psutil.Process().children(recursive=True))


def server_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and all its children, running and ended."""
    server = psutil.Process(pid)
    ended = server.cpu_times()
    running = sum(map(_cpu_seconds, server.children()))
    return _cpu_seconds(server) + ended.children_user + ended.children_system + running


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
