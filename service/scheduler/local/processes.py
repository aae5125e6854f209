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


def is_alive(pid: int, create_time: float | None, env_tag: str, uid: int) -> bool:
    """Whether this very process of an account runs; False for a zombie and for another process with a reused pid."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            _reap(pid)
            return False
        # A step of the system clock shifts every start time, so the env tag identifies the process too.
        is_same = process.create_time() == create_time or env_tag_of(process) == env_tag
        return is_same and process.uids().real == uid
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


def tagged_processes(env_tag: str, uid: int) -> list[psutil.Process]:
    """Every live process of an account with the env tag; other accounts may have set the same tag."""
    return [process for process in psutil.process_iter() if _is_live(process, uid) and env_tag_of(process) == env_tag]


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
    """Send SIGTERM to submitit's controller, which forwards it to its only task, the launcher."""
    _signal(pid, signal.SIGTERM)


def kill_tagged(env_tag: str, uid: int) -> int:
    """SIGKILL all processes of the attempt and their children; returns their number.

    Processes of other accounts than the attempt's are left alone: a service of root could kill any.

    They are stopped first, repeatedly until no new process appears, so that none can fork and escape.
    """
    stopped: dict[int, psutil.Process] = {}
    for _ in range(16):
        tagged = _with_children(tagged_processes(env_tag, uid), uid)
        fresh = [process for process in tagged if process.pid not in stopped]
        if not fresh:
            break
        for process in fresh:
            stopped[process.pid] = process
            _signal(process.pid, signal.SIGSTOP)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    return len(stopped)


def _is_live(process: psutil.Process, uid: int) -> bool:
    """Whether a process of this account runs."""
    try:
        return process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _with_children(processes: Collection[psutil.Process], uid: int) -> list[psutil.Process]:
    """The processes and their descendants of the account, which may have removed the env tag from their environment."""
    by_pid = {process.pid: process for process in processes}
    for process in processes:
        try:
            by_pid.update({child.pid: child for child in process.children(recursive=True) if _is_live(child, uid)})
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
