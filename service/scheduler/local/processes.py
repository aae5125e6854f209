"""The local processes of an attempt, identified by pid and start time, and by the attempt id in their environment.

The value of `TRAINYARD_ATTEMPT` in a process's environment is called its env tag.
"""

import os
import signal
from collections.abc import Collection, Iterable

import psutil

from trainyard.contract.spec.environment import ATTEMPT_VARIABLE

CONTROLLER = "submitit.local._local"
"""The module that submitit's controller process runs, as it appears on its command line."""


def is_alive(pid: int, create_time: float | None, env_tag: str) -> bool:
    """Whether this very process runs; False for a zombie and for another process with a reused pid."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            _reap(pid)
            return False
        # A step of the system clock shifts every start time, so the env tag identifies the process too.
        return process.create_time() == create_time or env_tag_of(process) == env_tag
    except psutil.Error:
        return False


def create_time(pid: int) -> float | None:
    """When the process started, in seconds since the epoch; None if it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def env_tag_of(process: psutil.Process) -> str | None:
    """The env tag of a process; None if it has none or cannot be read."""
    try:
        return process.environ().get(ATTEMPT_VARIABLE)
    except (psutil.Error, OSError):
        return None


def tagged_processes(env_tag: str) -> list[psutil.Process]:
    """Every live process of this user with the env tag."""
    tagged = []
    for process in psutil.process_iter():
        try:
            mine = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if mine and env_tag_of(process) == env_tag:
            tagged.append(process)
    return tagged


def controller_among(processes: Iterable[psutil.Process]) -> psutil.Process | None:
    """submitit's controller, identified by its command line."""
    for process in processes:
        try:
            if CONTROLLER in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def terminate(pid: int) -> None:
    """Send SIGTERM to submitit's controller, which forwards it to its one task, the launcher."""
    _signal(pid, signal.SIGTERM)


def kill_tagged(env_tag: str) -> int:
    """SIGKILL all processes of the attempt and their children; returns their number.

    They are stopped first, repeatedly until no new process appears, so that none can fork and escape.
    """
    stopped: dict[int, psutil.Process] = {}
    for _ in range(16):
        fresh = [process for process in _with_children(tagged_processes(env_tag)) if process.pid not in stopped]
        if not fresh:
            break
        for process in fresh:
            stopped[process.pid] = process
            _signal(process.pid, signal.SIGSTOP)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    return len(stopped)


def _with_children(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """The processes and their descendants, which may have removed the env tag from their environment."""
    by_pid = {process.pid: process for process in processes}
    for process in processes:
        try:
            by_pid.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.Error:
            continue
    return list(by_pid.values())


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(pid: int) -> None:
    """Reap a zombie that was reparented to this process (a service that is PID 1 of a container)."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
