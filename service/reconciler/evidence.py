"""The facts about an attempt, and their consequences for the reason of its end. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from service.core.sentences import begin_with_capital
from service.db.models import Job
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import ConditionCode, Desired, JobStatus
from trainyard.contract.wire.reports import ExitReason, FinishRecord

CONTACT_TIMEOUT_SECONDS = 600.0
"""A run that should stop, is not in the scheduler's queue and gave no sign of life for this long counts as ended."""

_POLL_INTERVAL, _MIN_POLLS = timedelta(minutes=1), 5


@dataclass(frozen=True)
class Absence:
    """The answers of a scheduler that did not list an attempt, none of which was missing."""

    since: datetime
    last: datetime
    polls: int = 1
    """Answers; those within a minute count once."""

    def again(self, now: datetime) -> "Absence":
        """Return the absence after another answer at a time. A clock that was set back begins it anew."""
        if now < self.last:
            return Absence(now, now)
        is_next = now - self.last >= _POLL_INTERVAL
        return Absence(self.since, now, self.polls + 1) if is_next else self

    @property
    def is_certain(self) -> bool:
        """Whether the scheduler does not have the attempt."""
        return self.polls >= _MIN_POLLS and self.last >= self.ends

    @property
    def ends(self) -> datetime:
        """When it is certain at the earliest."""
        return self.since + timedelta(seconds=CONTACT_TIMEOUT_SECONDS)


EndedBy = Literal["job", "user", "site", "unknown"]
EndReason = ExitReason | Literal["cancelled_outside"]
"""How an attempt ended. `cancelled_outside`: it was cancelled in the scheduler, and nobody knows by whom."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about the end of an attempt, or about an attempt that is not over."""

    observation: Observation | None
    """None: the scheduler did not answer."""
    exit_record: FinishRecord | None
    claimed: bool
    unclaimed: UnclaimedAttempt = field(default_factory=UnclaimedAttempt)
    """The contents of the attempt's folder if no worker has claimed the attempt from the service."""
    condition: ConditionCode | None = None
    """The job's present condition."""
    cancelled_before: bool = False
    """Whether the attempt before ended as `cancelled_outside`."""

    @property
    def end_state(self) -> EndedAs | None:
        """How the attempt ended, as the scheduler says."""
        end_state = self.observation.end_state if self.observation else None
        # Slurm 22.05 also calls a launch failed if a signal has killed the batch script.
        return "failed" if end_state == "launch_failed" and self.started else end_state

    @property
    def started(self) -> bool:
        """Whether a worker has claimed the attempt, from the service or in its folder."""
        return self.claimed or self.unclaimed.started

    @property
    def is_silent(self) -> bool:
        """Whether the attempt failed before anything was written to its folder."""
        return self.end_state == "failed" and self.unclaimed.no_output and not self.started and self.exit_record is None


@dataclass(frozen=True)
class Verdict:
    """Who ended an attempt, how and why."""

    by: EndedBy
    """Only `job` and `user` end the job, too."""
    reason: EndReason
    cause: str
    """With the scheduler's own words, if the worker did not report it."""
    startup_error: str = ""
    """The error that prevented the worker's start, if it is the cause."""


@dataclass(frozen=True, kw_only=True)
class JobSnapshot(Evidence):
    """The facts about a job whose attempt was submitted to the scheduler."""

    status: JobStatus
    desired: Desired
    retries_left: int = 0
    """Retries left after this attempt's in-place restarts."""
    continuations_without_progress: int = 0
    """Earlier attempts that the time limit ended without progress; attempts that the cluster ended are not counted."""
    on_time_limit: Literal["continue", "fail"] = "continue"
    run_dir_vanished: bool = False
    """The attempt was claimed and has ended, but its launch document is gone."""
    progressed: bool = False
    """Whether the attempt, which is over, has brought the job on, or nobody can know."""
    site_ends: int = 0
    """Attempts in a row, including this attempt, that ended soon after their start, if the cluster ended this
    attempt."""
    seconds_of_site_ends: float = 0.0
    """Since the first of them was made."""
    site_patience_seconds: float = 7 * 86400.0
    """How long the cluster may end attempts soon after their start before the job fails."""
    absence: Absence | None = None
    """How long the scheduler has not listed the attempt; None if it does, or has not answered."""
    stalled_hosts: frozenset[str] = frozenset()
    """The nodes of the ranks that stalled earlier attempts."""
    full_disks: int = 0
    """Attempts in a row, including this attempt, that a full disk ended."""
    seconds_since_claim: float = 0.0
    seconds_since_contact: float = 0.0
    """Since the worker's last sign of life, or since this service started to listen."""
    last_contact: datetime | None = None
    """When the worker last sent a heartbeat or claimed its attempt; None before the claim."""
    has_recent_heartbeat: bool = False
    seconds_since_stop: float = 0.0
    """Since the worker was first requested to stop after the scheduler had ended its attempt."""
    seconds_since_pause: float = 0.0
    pause_timeout_seconds: float = CONTACT_TIMEOUT_SECONDS
    """How long a worker may take to save and stop after a pause request."""

    @property
    def still_running(self) -> bool:
        """Whether the scheduler has ended the attempt, but its worker sends heartbeats and has not been given up."""
        observation = self.observation
        if observation is None or observation.state != "ended" or not observation.processes_may_live:
            return False
        alive = self.exit_record is None and self.has_recent_heartbeat
        return alive and self.seconds_since_stop < self.pause_timeout_seconds

    @property
    def pausing(self) -> bool:
        """Whether to pause; a pause that has begun is completed, even if the desired state changes back."""
        return self.status == "pausing" or (self.desired == "paused" and self.status != "cancelling")


_PROLOG = "the prolog of the site failed"
_NO_OUTPUT = "its node could not write to the run directory, which is probably not mounted there"
_ENDS: Mapping[EndedAs | None, tuple[EndedBy, EndReason, str]] = {
    "preempted": ("site", "preempted", "preempted"),
    "dropped": ("site", "preempted", "removed by Slurm's controller, not by a user"),
    "node_failure": ("site", "node_failure", "node failure"),
    "launch_failed": ("site", "node_failure", "Slurm could not launch the job on its node"),
    "time_limit": ("job", "time_limit", "time limit reached"),
    "out_of_memory": ("job", "out_of_memory", "out of memory"),
}
"""Ends that the scheduler explains by their state alone."""


def verdict(evidence: Evidence) -> Verdict:
    """Return who ended an attempt that is over, according to its worker unless the scheduler knows better."""
    record, end_state, observation = evidence.exit_record, evidence.end_state, evidence.observation
    if record is not None and not _scheduler_overrides(end_state, record):
        by: EndedBy = "site" if record.reason in ("preempted", "node_failure") else "job"
        by = "user" if record.reason in ("paused", "user_cancelled") else by
        return Verdict(by, record.reason, _reported_cause(evidence, record))
    if end_state == "cancelled" and observation is not None:
        return _verdict_of_cancellation(evidence, observation)
    if observation is not None and observation.prolog_failed and not evidence.started:
        return Verdict("site", "node_failure", _with_report(_PROLOG, observation))
    if end_state == "launch_failed" and evidence.unclaimed.vanished:
        cause = _with_report("its run directory was deleted before it started", observation)
        return Verdict("site", "preempted", cause)
    if end_state in _ENDS:
        by, reason, cause = _ENDS[end_state]
        began = (
            evidence.claimed
            or evidence.unclaimed != UnclaimedAttempt()
            or (observation is not None and observation.nodes)
        )
        cause = cause if began or end_state != "node_failure" else "ended by Slurm before it started"
        return Verdict(by, reason, _with_report(cause, observation))
    if evidence.is_silent:
        return Verdict("site", "node_failure", _with_report(_NO_OUTPUT, observation))
    if record is None and (error := evidence.unclaimed.startup_error):
        return Verdict("site", "node_failure", _with_report(f"the worker did not start: {error}", observation), error)
    return Verdict("unknown", "node_failure", _with_report("processes ended without an exit record", observation))


def _verdict_of_cancellation(evidence: Evidence, observation: Observation) -> Verdict:
    """Return who cancelled an attempt in the scheduler. Programs of the site cancel as an administrator does."""
    by = observation.canceller
    if by is None or by.is_administrator:
        if observation.prolog_failed and not evidence.started:
            return Verdict("site", "node_failure", _with_report(_PROLOG, observation))
        if observation.node_left:
            return Verdict("site", "node_failure", _with_report("its node was taken out of service", observation))
        if observation.nodes and not evidence.started:
            cause = _with_report("cancelled in Slurm before its worker started", observation)
            return Verdict("site", "preempted", cause)
    if by is not None:
        who = f"an administrator ({by.name})" if by.is_administrator else by.name
        return Verdict("user", "user_cancelled", _with_report(f"cancelled by {who} with `scancel`", observation))
    if not evidence.cancelled_before:
        return Verdict(
            "unknown", "cancelled_outside", _with_report("cancelled in Slurm by an unknown user", observation)
        )
    return Verdict("user", "user_cancelled", _with_report(_CANCELLED_OUTSIDE, observation))


_CANCELLED_OUTSIDE = "cancelled outside Trainyard, such as by `scancel`"


def cancelled_text(judged: Verdict) -> str:
    """Return the message of a job that ended because its attempt was cancelled, even if not by a user after all."""
    cause = judged.cause if judged.by == "user" else f"not ended by a user: {judged.cause}"
    return f"{begin_with_capital(cause)}. `trainyard retry` continues the job."


def _scheduler_overrides(end_state: EndedAs | None, exit_record: FinishRecord) -> bool:
    """Return whether the scheduler knows the reason better than the worker.

    A worker that receives a signal cannot distinguish a preemption from a cancellation or a failing node, and ranks
    that report only a lost peer do not know that its node failed.
    """
    if exit_record.reason == "preempted":
        return end_state in ("cancelled", "node_failure", "time_limit")
    return end_state == "node_failure" and exit_record.failure is not None and exit_record.failure.consequence


def _reported_cause(evidence: Evidence, record: FinishRecord) -> str:
    """Return the cause of an end that the worker reported; Slurm names a preemption, the worker only its signal."""
    observation, end_state = evidence.observation, evidence.end_state
    if record.reason == "user_cancelled":
        return _with_report(_CANCELLED_OUTSIDE, observation)
    if record.reason == "node_failure" and record.failure is not None:
        return record.failure.message
    if record.reason != "preempted":
        return {"time_limit": "time limit reached"}.get(record.reason, record.reason)
    if evidence.condition == "requeued":
        return "requeued by an operator or the site"
    if end_state == "failed":
        return _with_report("ended by a signal that is no preemption", observation)
    if end_state == "completed":
        return _with_report("requested to stop by a signal, as before a preemption", observation)
    return _ENDS[end_state][2] if end_state in _ENDS else "preempted"


def _with_report(cause: str, observation: Observation | None) -> str:
    return f"{cause} ({observation.message})" if observation is not None and observation.message else cause


def with_memory_error(observation: Observation, line: str) -> Observation:
    """Return the observation of an attempt that has left no exit record, with a line of Slurm's log about its memory.

    If a step exceeds its memory, and not the batch script, Slurm reports only that the script has failed.
    """
    if not line or observation.end_state not in ("failed", "launch_failed"):
        return observation
    return replace(observation, end_state="out_of_memory", message=f"{observation.message}; {line}")


def with_job_names(observation: Observation, job_names: Mapping[str, str], job: Job) -> Observation:
    """Return a job's observation whose message has names instead of tags; owners do not see the names of others'
    jobs."""
    message = observation.message
    for tag in observation.blocked_by:
        message = message.replace(tag, job_names.get(tag, tag) if job.unix_uid is None else "another job")
    return replace(observation, message=message) if message != observation.message else observation
