"""What follows from what is known about one job. Pure: no clock, no database, no scheduler."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from service.jobs.states import SUSPENDED, TRANSITIONS
from service.reconciler.run_dir import Unclaimed
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import Desired, JobStatus, StatusReason
from trainyard.contract.wire.reports import CONTINUE_REASONS, ExitReason, Failure, FinishRecord

MAX_BARREN = 3
"""Continuations in a row without a newer checkpoint: one more would do the same again."""


SILENCE_SECONDS = 600.0
"""A run that the scheduler does not know, that was told to stop and that has said nothing for so long is gone."""

_OLDEST_ANSWER_SECONDS = 30.0
"""An answer of the scheduler may be this old, and from before the claim. What is requeued waits for two minutes."""

REQUEUED = "requeued by an operator or by the site; a next attempt follows when Slurm has started and ended this one"
CANCEL_WAITS = "cancel asked; waits for the scheduler to answer"
UNREPORTED = (
    "it runs, and nothing of it arrives: its node does not reach TRAINYARD_PUBLIC_URL, or distrusts its certificate "
    "(attempts/<n>/logs/launch.log in its folder says which); what it writes down is read when it is over"
)

UNLISTED = "the scheduler no longer knows it, but its worker is heard: it goes on"

UNHEARD_SECONDS = 60.0
"""A worker beats every ten seconds: one that has not for so long does not hear of a pause by its heartbeat either."""


@dataclass(frozen=True)
class Facts:
    """What is known about a job whose attempt the scheduler has."""

    status: JobStatus
    desired: Desired
    claimed: bool
    observation: Observation | None
    """None: the scheduler could not be asked."""
    finish: FinishRecord | None
    retries_left: int
    """Errors of the program that are still forgiven, this attempt's in-place restarts taken off."""
    barren: int
    """Continuations in a row that began without a newer checkpoint, the one that would follow now counted in."""
    on_time_limit: Literal["continue", "fail"]
    unclaimed: Unclaimed = field(default_factory=Unclaimed)
    """Where no worker has claimed it."""
    said: str = ""
    """The words about its status, as they are."""
    former: tuple[str, ...] = ()
    """How the attempts before this one ended that brought no newer checkpoint either, oldest first."""
    claimed_seconds: float = 0.0
    """Since a worker claimed it."""
    silent_seconds: float = 0.0
    """Since the last sign of life of its worker, or since this service could hear one."""
    heard: bool = False
    """Its worker has beaten a moment ago."""
    pause_seconds: float = 0.0
    """Since it was asked to pause."""
    pause_patience: float = SILENCE_SECONDS
    """How long a worker that has been asked may take to save and leave."""

    @property
    def pausing(self) -> bool:
        """A pause that was begun is carried out, whatever is wanted after it."""
        return self.status == "pausing" or (self.desired == "paused" and self.status != "cancelling")


@dataclass(frozen=True)
class Verdict:
    """What to do: a move, or new words about the same status, or a request to the scheduler, or nothing."""

    status: JobStatus | None = None
    message: str | None = None
    reason: StatusReason | None = None
    failure: Failure | None = None
    cancel: bool = False
    """Ask the scheduler to end it."""
    ended: bool = False
    """The attempt is over: nothing of it runs any more."""
    spends_retry: bool = False
    exit_reason: str | None = None
    estimated_start: datetime | None = None
    """When the scheduler expects to start it, while it waits."""


NOTHING = Verdict()


def decide(facts: Facts) -> Verdict:
    """The next step toward what is wanted. On missing evidence: nothing."""
    seen = facts.observation
    if seen is None:
        return _unheard(facts)
    if seen.state == "ended" or (seen.state == "absent" and facts.finish is not None):
        return _after_end(facts)
    if seen.state == "absent":
        return _vanished(facts)
    if facts.desired == "cancelled":
        told = facts.status == "cancelling" and facts.said != CANCEL_WAITS
        message = None if told else "asked to stop; waiting until nothing of it runs any more"
        return Verdict(status=_unless(facts.status, "cancelling"), message=message, cancel=True)
    if facts.pausing and facts.status in ("pending", "running", "pausing"):
        return _to_pause(facts)
    return _alive(facts, seen)


def _unheard(facts: Facts) -> Verdict:
    """The scheduler does not answer: nothing is concluded, and a cancellation is not forgotten."""
    if facts.desired == "cancelled" and facts.status in ("pending", "running", "pausing"):
        return Verdict(status="cancelling", message=CANCEL_WAITS)
    return NOTHING


def _to_pause(facts: Facts) -> Verdict:
    """A worker hears of it by its heartbeat and saves first; what has not begun, or does not hear, is taken back."""
    unheard = min(facts.pause_seconds, facts.silent_seconds) >= UNHEARD_SECONDS
    if not facts.claimed:
        message, cancel = "its place in the queue is being given back", True
    elif unheard or facts.pause_seconds >= facts.pause_patience:
        message, cancel = "it did not stop by itself in time; the scheduler is asked to end it", True
    else:
        message, cancel = "asked to save a checkpoint and stop", False
    return Verdict(status=_unless(facts.status, "pausing"), message=message, cancel=cancel)


def _unless(status: JobStatus, target: JobStatus) -> JobStatus | None:
    return None if status == target else target


def _alive(facts: Facts, seen: Observation) -> Verdict:
    if facts.status == "lost":
        revived: JobStatus = "running" if facts.claimed else "pending"
        return Verdict(status=revived, message="contact is back")
    if facts.status == "pending" and not facts.claimed:
        started = UNREPORTED if facts.unclaimed.began else "started; the worker is coming up"
        words = seen.message if seen.state == "pending" else started
        return Verdict(message=words or None, estimated_start=seen.estimated_start)
    if facts.status == "running" and seen.state == "pending" and facts.claimed_seconds >= _OLDEST_ANSWER_SECONDS:
        # Submitted with `--no-requeue`, so that a preemption never puts it back into the queue.
        return Verdict(message=REQUEUED)
    if facts.status == "running" and seen.suspended:
        return Verdict(message=seen.message)
    if facts.status == "running" and facts.said == UNLISTED:
        return Verdict(message="the scheduler knows it again")
    if facts.status == "running" and seen.state == "running" and facts.said.startswith(SUSPENDED):
        return Verdict(message="running again; it is no longer suspended")
    return NOTHING


def _vanished(facts: Facts) -> Verdict:
    if facts.desired == "cancelled" and (not facts.claimed or facts.silent_seconds >= SILENCE_SECONDS):
        # A claim after the cancellation is refused: what was never claimed can not begin any more. What is only not
        # listed yet would still wait and be started for nothing.
        return replace(_cancelled(facts), cancel=not facts.claimed)
    if facts.desired == "cancelled":
        message = "asked to stop; the scheduler no longer knows it: over when ten minutes have passed without a sign"
        return Verdict(status=_unless(facts.status, "cancelling"), message=message)
    if facts.status == "lost":
        return Verdict(status="running", message=UNLISTED) if facts.heard else NOTHING
    if facts.pausing and (not facts.claimed or facts.silent_seconds >= SILENCE_SECONDS):
        # As with a cancellation: a claim after the request is refused.
        return _paused(facts, "node_failure" if facts.claimed else "preempted")
    if facts.pausing:
        message = "asked to stop; the scheduler no longer knows it: paused when ten minutes have passed without a sign"
        return Verdict(status=_unless(facts.status, "pausing"), message=message)
    if facts.heard:
        return Verdict(message=UNLISTED)
    return Verdict(
        status="lost", message="the scheduler no longer knows it and it left no last word; nothing is assumed"
    )


def _after_end(facts: Facts) -> Verdict:
    why = _why(facts)
    if why == "completed":
        return Verdict(
            status="succeeded", reason="completed", message="all steps are done", ended=True, exit_reason=why
        )
    if facts.desired == "cancelled" or facts.status == "cancelling":
        return _cancelled(facts)
    if why in ("error", "out_of_memory", "stalled", "rejected"):
        return _after_error(facts, why, facts.finish.failure if facts.finish else _OUT_OF_MEMORY)
    if facts.pausing:
        return _paused(facts, why)
    if why == "user_cancelled":
        message = "stopped by somebody else, such as `scancel`; `trainyard retry` runs it on from its last checkpoint"
        return Verdict(status="cancelled", reason="cancelled_outside", message=message, ended=True, exit_reason=why)
    if why == "time_limit" and facts.on_time_limit == "fail":
        message = "reached its time limit; `restart.on_time_limit: continue` would go on from the last checkpoint"
        return Verdict(status="failed", reason="time_limit", message=message, ended=True, exit_reason=why)
    return _continued(facts, why)


def _why(facts: Facts) -> ExitReason:
    """The worker's last word, or the scheduler's where there is none or it knows better.

    A worker that is asked to end cannot tell a preemption from somebody's cancel or a dying node; and ranks that only
    complain of a peer do not know that its node died. The scheduler does.
    """
    told = facts.observation.ended_as if facts.observation else None
    if facts.finish is not None and not _knows_better(told, facts.finish):
        return facts.finish.reason
    words: dict[EndedAs | None, ExitReason] = {
        "cancelled": "user_cancelled",
        "preempted": "preempted",
        "time_limit": "time_limit",
        "out_of_memory": "out_of_memory",
    }
    return words.get(told, "node_failure")


def _knows_better(told: EndedAs | None, finish: FinishRecord) -> bool:
    if finish.reason == "preempted":
        return told in ("cancelled", "node_failure", "time_limit")
    return told == "node_failure" and finish.failure is not None and finish.failure.consequence


_OUT_OF_MEMORY = Failure(
    type="OutOfMemory",
    message="the scheduler ended it because it used more memory than it had asked for",
    hint="Ask for more (resources.memory_gb_per_gpu) or lower batch.micro_size.",
)


def _cancelled(facts: Facts) -> Verdict:
    if "cancelled" not in TRANSITIONS[facts.status]:
        return Verdict(status="cancelling", message="asked to stop")
    return Verdict(
        status="cancelled",
        reason="user_cancelled",
        message="nothing of it runs any more",
        ended=True,
        exit_reason="user_cancelled",
    )


def _paused(facts: Facts, why: ExitReason) -> Verdict:
    if "paused" not in TRANSITIONS[facts.status]:
        return Verdict(status="pausing", message="asked to save a checkpoint and stop")
    if not facts.claimed:
        message = "paused before it began; its place in the queue is given back"
    elif facts.finish is not None and facts.finish.reason in CONTINUE_REASONS:
        message = f"paused after step {facts.finish.step}; its allocation is given back"
    else:
        message = "paused without a last word: it goes on from its last checkpoint; its allocation is given back"
    exit_reason = "paused" if not facts.claimed or why in ("preempted", "user_cancelled") else why
    return Verdict(status="paused", message=message, ended=True, exit_reason=exit_reason)


def _after_error(facts: Facts, why: ExitReason, told: Failure | None) -> Verdict:
    failure = told or Failure(type="UnknownError", message="the worker gave no reason")
    where = f"rank {failure.rank}: " if failure.rank is not None else ""
    line = (failure.message.strip().splitlines() or [""])[0]
    words = f"{where}{failure.type}: {line}"
    if why == "rejected" or failure.final or facts.retries_left <= 0:
        reason: StatusReason = why
        return Verdict(status="failed", reason=reason, message=words, failure=failure, ended=True, exit_reason=why)
    return Verdict(
        status="paused" if facts.status == "pausing" else "queued",
        message=f"to be tried again ({facts.retries_left} left) after {words}",
        failure=failure,
        ended=True,
        spends_retry=True,
        exit_reason=why,
    )


_WHY = {
    "preempted": "it was preempted",
    "time_limit": "its time limit was reached",
    "node_failure": "its processes ended without a last word",
}


_HELP = {
    "preempted": "take a partition or qos whose jobs are not preempted",
    "time_limit": "raise resources.time_limit_minutes, or take a partition that allows more (`trainyard cluster`)",
    "node_failure": "look at the log of each attempt and at its nodes",
}


def _given_up(facts: Facts, why: ExitReason, words: str) -> str:
    """What ended each attempt, and what helps against that."""
    ends = [*facts.former, why]
    if _not_begun(facts, why) and len(set(ends)) == 1:
        return f"{words}; so did {facts.barren} attempts in a row"
    told = f"{words}, {facts.barren} times in a row"
    if len(set(ends)) > 1:
        each = ", then ".join(_WHY.get(end, end) for end in ends)
        told = f"{facts.barren} attempts in a row ended ({each})"
    helps = "; ".join(_HELP[end] for end in dict.fromkeys(ends) if end in _HELP)
    return f"{told} without a newer checkpoint; write checkpoints more often (checkpoint.every_steps), or {helps}"


def _words(facts: Facts, why: ExitReason) -> str:
    finish, seen = facts.finish, facts.observation
    if why == "preempted" and facts.said == REQUEUED:
        return "it was requeued by an operator or by the site"
    words = _WHY[why]
    if finish is not None and finish.reason == "node_failure" and finish.failure is not None:
        words = finish.failure.message
    elif seen is not None and seen.ended_as == "node_failure":
        words = "a node failed"
    elif reason := _not_begun(facts, why):
        words = f"it ended before its worker began: {reason}"
    said = f" ({seen.message})" if seen is not None and seen.message else ""
    return words if finish is not None and finish.reason == why else words + said


def _continued(facts: Facts, why: ExitReason) -> Verdict:
    words = _words(facts, why)
    if facts.barren >= MAX_BARREN:
        message = _given_up(facts, why, words)
        reason = _not_begun(facts, why)
        told = Failure(type="NotStarted", message=reason, hint=_INTERPRETER) if reason else None
        return Verdict(
            status="failed", reason="retries_exhausted", message=message, failure=told, ended=True, exit_reason=why
        )
    return Verdict(
        status="queued", message=f"to be continued from the last checkpoint: {words}", ended=True, exit_reason=why
    )


_INTERPRETER = (
    "Mend what it says. On Slurm the nodes run TRAINYARD_SLURM_PYTHON, which has to be there on each, under that "
    "path and with the worker installed: srun -N1 <that path> -c 'import torch, worker'."
)


def _not_begun(facts: Facts, why: ExitReason) -> str:
    """Why no worker began, as far as anybody wrote it down, where nothing else explains the end."""
    failed_node = facts.observation is not None and facts.observation.ended_as == "node_failure"
    explained = why != "node_failure" or facts.finish is not None or failed_node
    return "" if explained else facts.unclaimed.reason
