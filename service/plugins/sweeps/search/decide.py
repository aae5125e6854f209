"""The next moves of a search, from the state of all its trials. Pure functions: no clock, database or sampling.

`asha` and `hyperband` are the asynchronous successive halving of Li et al. 2020 (A System for Massively Parallel
Hyperparameter Tuning, algorithm 2): whenever a place is free, the best trial that is paused at a rung continues if it
is among the best of `1 / eta` of all results of that rung; otherwise a new trial starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.jobs.states import ACTIVE
from service.plugins.sweeps.search.plan import SearchPlan

MAX_REJECTED = 10
"""Proposals without any job after which a search fails."""


MAX_SAME_ERRORS = 3
"""Trials that a final error ended, the same in all of them and before any result, after which a search fails."""


@dataclass(frozen=True)
class Trial:
    """One trial as the database has it."""

    number: int
    values: Mapping[str, object]
    bracket: int = 0
    status: str | None = None
    """Status of its job; None: the job was deleted, or the proposal was rejected."""
    reason: str | None = None
    rejected: bool = False
    error: str = ""
    """The final error that ended its job: it would end a retry too."""
    desired: str = "run"
    pause_at: int | None = None
    step: int = 0
    """Step of its newest checkpoint."""
    value: float | None = None
    """The newest value of the metric, if it is finite."""
    results: Mapping[int, float | None] = field(default_factory=dict)
    """The value at each rung that it has reached."""

    @property
    def is_active(self) -> bool:
        """Whether it counts in `max_parallel`."""
        return self.status in ACTIVE or (self.status in ("queued", "paused") and self.desired == "run")

    @property
    def paused_at(self) -> int | None:
        """The rung at which it is paused."""
        is_there = self.status == "paused" and self.desired == "paused" and self.pause_at is not None
        return self.pause_at if is_there and self.step >= (self.pause_at or 0) else None

    @property
    def has_failed(self) -> bool:
        """Whether its values are at fault; an infrastructure failure does not depend on them."""
        return self.rejected or (self.status == "failed" and self.reason in ("error", "out_of_memory"))


@dataclass(frozen=True)
class NextMoves:
    """The moves that follow from the state of a search."""

    record: Mapping[int, int] = field(default_factory=dict)
    """The rung of each trial that has reached it and whose value is to be recorded."""
    promote: Mapping[int, int | None] = field(default_factory=dict)
    """The trials that continue, and the step at which they pause next."""
    proposals: int = 0
    """How many new trials start."""
    stop: Sequence[int] = ()
    """Trials that end at their rung, since the search is over."""
    state: str = "running"
    message: str = ""

    @property
    def changes(self) -> bool:
        """Whether there is anything to write, other than new trials."""
        return bool(self.record or self.promote or self.stop) or self.state != "running"


def next_moves(plan: SearchPlan, trials: Sequence[Trial], gpu_seconds: float) -> NextMoves:
    """Return the next moves. Results that are to be recorded count in the same call."""
    record = {t.number: at for t in trials if (at := t.paused_at) is not None and at not in t.results}
    known = [_with_result(trial, record.get(trial.number)) for trial in trials]
    free = plan.max_parallel - sum(trial.is_active for trial in known)
    limit = plan.search.max_gpu_hours
    spent = limit is not None and gpu_seconds >= limit * 3600.0
    promote: dict[int, int | None] = {}
    if not spent:
        for trial in promotable(plan, known)[: max(0, free)]:
            promote[trial.number] = plan.next_pause(trial.paused_at or 0)
    left = 0 if spent else plan.trials - len(known)
    proposals = max(0, min(left, free - len(promote)))
    if len(known) >= MAX_REJECTED and all(trial.rejected for trial in known):
        return NextMoves(state="failed", message=f"the first {len(known)} proposed specs were rejected")
    if proposals and (error := common_error(known)):
        return NextMoves(state="failed", message=f"{len(known)} jobs failed with the same error: {error}")
    is_idle = not any(trial.is_active for trial in known) and not _is_paused_by_user(known)
    if is_idle and not promote and not proposals and left <= 0:
        if not spent and (best := _to_complete(plan, known)) is not None:
            return NextMoves(record=record, promote={best.number: None})
        stop = [trial.number for trial in known if trial.paused_at is not None]
        why = f"max_gpu_hours ({limit:g}) is spent" if spent else f"all {len(known)} trials have ended"
        return NextMoves(record=record, stop=stop, state="finished", message=f"Finished: {why}.")
    return NextMoves(record=record, promote=promote, proposals=proposals)


def common_error(trials: Sequence[Trial]) -> str:
    """Return the final error that ended all trials so far; empty if there are few, or another end."""
    errors = {trial.error for trial in trials}
    return errors.pop() if len(errors) == 1 and len(trials) >= MAX_SAME_ERRORS else ""


def promotable(plan: SearchPlan, trials: Sequence[Trial]) -> list[Trial]:
    """Return the paused trials that may continue, those at the highest rung first."""
    candidates = []
    for rung in reversed(plan.rung_steps):
        for bracket in sorted({trial.bracket for trial in trials}):
            group = [trial for trial in trials if trial.bracket == bracket and rung in trial.results]
            ranked = ranked_at(plan, group, rung)
            best = ranked[: len(group) // plan.search.eta]
            candidates += [trial for trial in best if trial.paused_at == rung]
    return candidates


def ranked_at(plan: SearchPlan, trials: Sequence[Trial], rung: int) -> list[Trial]:
    """Return the trials with a value at a rung, the best trial first; among equal values, the older trial first."""
    scored = [
        (plan.sign * value, trial.number, trial) for trial in trials if (value := trial.results.get(rung)) is not None
    ]
    return [trial for _, _, trial in sorted(scored, key=lambda entry: entry[:2])]


def _to_complete(plan: SearchPlan, trials: Sequence[Trial]) -> Trial | None:
    """Return the best trial of the highest rung if none has trained to the end, since a search shall have a winner."""
    if any(trial.status == "succeeded" for trial in trials):
        return None
    for rung in reversed(plan.rung_steps):
        if ranked := ranked_at(plan, [trial for trial in trials if trial.paused_at == rung], rung):
            return ranked[0]
    return None


def _is_paused_by_user(trials: Sequence[Trial]) -> bool:
    waiting = (trial for trial in trials if trial.paused_at is None)
    return any(
        trial.status == "paused" or (trial.status == "queued" and trial.desired == "paused") for trial in waiting
    )


def _with_result(trial: Trial, rung: int | None) -> Trial:
    if rung is None:
        return trial
    return replace(trial, results={**trial.results, rung: trial.value})
