"""What of an attempt runs here: identity by pid and start time, belonging by the marker in the environment."""

import os
import signal
from collections.abc import Collection, Iterable

import psutil

from service.scheduler.launch_plan import MARKER

CONTROLLER = "submitit.local._local"
"""The module that submitit's controller runs; it is on its command line."""


def is_alive(pid: int, create_time: float | None, marker: str) -> bool:
    """Whether this very process runs. A zombie does not, and a process that got the same pid later is another."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            _reap(pid)
            return False
        # A step of the system clock shifts every create time; the marker is proof as well.
        return process.create_time() == create_time or marker_of(process) == marker
    except psutil.Error:
        return False


def create_time(pid: int) -> float | None:
    """When the process began; None if it is gone already."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def marker_of(process: psutil.Process) -> str | None:
    """The attempt that a process belongs to."""
    try:
        return process.environ().get(MARKER)
    except (psutil.Error, OSError):
        return None


def marked(marker: str) -> list[psutil.Process]:
    """Every live process of this user that belongs to the attempt."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if mine and marker_of(process) == marker:
            found.append(process)
    return found


def controller_among(processes: Iterable[psutil.Process]) -> psutil.Process | None:
    """submitit's controller, known by its command line."""
    for process in processes:
        try:
            if CONTROLLER in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def terminate(pid: int) -> None:
    """Ask submitit's controller to end: it passes SIGTERM on to the one task, which is the worker's launcher."""
    _signal(pid, signal.SIGTERM)


def kill_marked(marker: str) -> int:
    """SIGKILL everything that belongs to the attempt; returns how many processes that were.

    Stopped first, in rounds until no new one turns up, so that nothing can fork its way out; then killed.
    """
    stopped: dict[int, psutil.Process] = {}
    for _ in range(16):
        fresh = [process for process in _with_children(marked(marker)) if process.pid not in stopped]
        if not fresh:
            break
        for process in fresh:
            stopped[process.pid] = process
            _signal(process.pid, signal.SIGSTOP)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    return len(stopped)


def _with_children(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """A child that cleaned its environment is still a child."""
    found = {process.pid: process for process in processes}
    for process in processes:
        try:
            found.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.Error:
            continue
    return list(found.values())


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(pid: int) -> None:
    """Collect a dead process that was handed to this one (a service that is a container's first process)."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
