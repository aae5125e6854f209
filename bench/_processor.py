"""The processor's time of what a benchmark has started: on a machine that others use, it tells more than the clock."""

import psutil


def spent_by_children() -> float:
    """Seconds so far of the processes that this one has started and that still run, and of theirs."""
    return sum(_spent(process) for process in psutil.Process().children(recursive=True))


def spent_by_server(pid: int) -> float:
    """Seconds so far of a process and of all its children, those that have ended included."""
    server = psutil.Process(pid)
    ended = server.cpu_times()
    return _spent(server) + ended.children_user + ended.children_system + sum(map(_spent, server.children()))


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
