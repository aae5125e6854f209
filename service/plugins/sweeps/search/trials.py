"""The state of a search as the database has it, for decisions and proposals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.db.models import Job, Sweep, SweepTrial
from service.plugins.sweeps.repository import SweepRepository
from service.plugins.sweeps.search.decide import Trial
from service.plugins.sweeps.search.plan import SearchPlan


@dataclass(frozen=True)
class SearchState:
    """A search with its trials and their jobs."""

    sweep: Sweep
    plan: SearchPlan
    trials: Sequence[Trial]
    rows: Mapping[int, SweepTrial]
    """Trials by number."""
    jobs: Mapping[int, Job]
    """Jobs by number, without deleted jobs."""
    gpu_seconds: float


def load_search(session: Session, sweep: Sweep, now: datetime) -> SearchState:
    """Return the state of a search."""
    repository = SweepRepository(session)
    plan = SearchPlan.model_validate(sweep.search)
    rows = {row.number: row for row in repository.list_trials(sweep.id)}
    by_id = {job.id: job for job in repository.list_jobs(sweep.id)}
    jobs = {number: by_id[row.job_id] for number, row in rows.items() if row.job_id in by_id}
    trials = [trial_of(row, jobs.get(number), plan.metric) for number, row in rows.items()]
    return SearchState(sweep, plan, trials, rows, jobs, repository.gpu_seconds(sweep.id, now))


def trial_of(row: SweepTrial, job: Job | None, metric: str) -> Trial:
    """Return a trial from its row and its job, which may be deleted."""
    results = {int(step): value for step, value in row.results.items()}
    if job is None:
        rejected = row.job_id is None
        return Trial(row.number, row.values, row.bracket, rejected=rejected, results=results)
    return Trial(
        number=row.number,
        values=row.values,
        bracket=row.bracket,
        status=job.status,
        reason=job.status_reason,
        error=_final_error(job),
        desired=job.desired,
        pause_at=job.pause_at_step,
        step=job.last_checkpoint_step or 0,
        value=finite(job.latest.get(metric)),
        results=results,
    )


def _final_error(job: Job) -> str:
    failure = job.failure or {}
    return str(failure.get("message", "")) if job.status == "failed" and failure.get("final") else ""


def finite(value: Any) -> float | None:
    """Return a stored metric as a number; None if there is none, or it is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
