"""Checks of Slurm's times: how long it remembers ended jobs, and how long a job that has to stop may save."""

import math
import re
from collections.abc import Mapping

from service.core.settings import Settings
from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.accounting import parse_rules, settings_of
from service.scheduler.slurm.commands import SlurmCommands
from trainyard.contract.wire.diagnostics import Finding, ok_finding, warning_finding

SAVE_DAYS = 30
_COMMAND_SECONDS = 10.0
"""How long a poll of Slurm may take."""
_SAVE_MARGIN = 1.25
"""A save at the end waits for the current step, and shares the disk with other jobs."""
_PAIR = re.compile(r"(\w+)=(\S*)")


def ended_jobs(settings: Settings) -> Finding:
    """Whether Slurm still knows how a job ended when the service asks next."""
    try:
        configuration = SlurmCommands().configuration()
    except SchedulerUnavailableError as error:
        return warning_finding("ended jobs", f"cannot be checked: {error}", "see the finding slurmctld")
    return ended_jobs_finding(configuration, settings.slurm_max_poll_seconds)


def ended_jobs_finding(configuration: str, max_poll_seconds: float) -> Finding:
    """The finding for the output of `scontrol show config` and the longest time between two polls."""
    name = "ended jobs"
    if parse_rules(configuration).present:
        return ok_finding(name, "Slurm's accounting has how they ended")
    age = seconds_of(configuration, "MinJobAge")
    if age is None:
        return warning_finding(name, "scontrol does not show MinJobAge", "see the finding slurmctld")
    # A poll takes time as well.
    needed = max_poll_seconds + _COMMAND_SECONDS
    if age == 0 or age >= needed:
        return ok_finding(name, f"there is no accounting; MinJobAge={age}, and a poll at least every {needed:g} s")
    message = (
        f"there is no accounting, and Slurm forgets ended jobs after {age} s (MinJobAge), while up to {needed:g} s "
        "pass between two polls: the cause of an end, such as the time limit, may stay unknown"
    )
    fix = f"set MinJobAge={math.ceil(needed)} or more in slurm.conf, or lower TRAINYARD_SLURM_MAX_POLL_SECONDS"
    return warning_finding(name, message, fix)


def time_to_save(settings: Settings, longest: float | None) -> Finding:
    """Whether a job that Slurm preempts, or stops at its time limit, has the time to save a checkpoint.

    Args:
        longest: The seconds of the longest save of late; None: none is known.
    """
    slurm = SlurmCommands()
    try:
        configuration = slurm.configuration()
        by_qos = settings_of(configuration).get("PreemptType") == "preempt/qos"
        qos = slurm.qos(("Name", "GraceTime", "Preempt")) if by_qos else ""
        grace = preemption_grace(slurm.partitions(), qos)
    except SchedulerUnavailableError as error:
        return warning_finding("saves", f"cannot be checked: {error}", "see the finding slurmctld")
    kill_wait = seconds_of(configuration, "KillWait") or 0
    return saves_finding(longest, grace, kill_wait, settings.slurm_signal_lead_seconds)


def saves_finding(longest: float | None, grace: Mapping[str, int], kill_wait: int, lead: int) -> Finding:
    """The finding for the times between the signal to stop and the end of all processes.

    Args:
        longest: Seconds of the longest save of late.
        grace: GraceTime in seconds by the partition or QOS whose jobs can be preempted.
        kill_wait: Seconds between SIGTERM and SIGKILL.
        lead: Seconds between the service's own signal and the time limit.
    """
    times = {f"a preempted job of {name}": seconds + kill_wait for name, seconds in grace.items()}
    times["a job at its time limit"] = lead + kill_wait
    shown = ", ".join(f"{name} has {seconds} s" for name, seconds in times.items())
    if longest is None:
        return ok_finding("saves", f"{shown}; no save was measured in the last {SAVE_DAYS} days")
    message = f"the longest save of the last {SAVE_DAYS} days took {longest:.0f} s; {shown}"
    short = [name for name, seconds in times.items() if seconds < longest * _SAVE_MARGIN]
    if not short:
        return ok_finding("saves", message)
    fix = (
        f"raise GraceTime or KillWait in slurm.conf, for jobs at their time limit TRAINYARD_SLURM_SIGNAL_LEAD_SECONDS; "
        f"or save more often (checkpoint.every_steps). Too short, with the step before the save: {', '.join(short)}"
    )
    return warning_finding("saves", message, fix)


def preemption_grace(partitions: str, qos: str) -> dict[str, int]:
    """Return GraceTime in seconds by name, from `scontrol show partition` and `sacctmgr show qos`, for partitions and
    QOS that others preempt by cancelling or requeueing."""
    shown = [dict(_PAIR.findall(line)) for line in partitions.splitlines()]
    tiers = [int(one.get("PriorityTier", 1)) for one in shown]
    result = {
        f"partition {one['PartitionName']}": int(one.get("GraceTime", 0))
        for one, tier in zip(shown, tiers, strict=True)
        if not qos and tier < max(tiers) and one.get("PreemptMode") in ("CANCEL", "REQUEUE")
    }
    rows = [line.split("|") for line in qos.splitlines() if line.count("|") == 2]
    preempted = {name for _, _, names in rows for name in names.split(",")}
    return result | {f"QOS {name}": _clock_seconds(time) for name, time, _ in rows if name in preempted}


def seconds_of(configuration: str, name: str) -> int | None:
    """Return a time of `scontrol show config`, such as `MinJobAge = 300 sec`; None if it is not shown."""
    number, _, _ = settings_of(configuration).get(name, "").partition(" ")
    return int(number) if number.isdecimal() else None


def _clock_seconds(text: str) -> int:
    """Return the seconds of a time such as `1-02:03:04` or `00:00:15`."""
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
