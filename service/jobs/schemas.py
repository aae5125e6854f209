"""Conversion of rows into the resources of the API."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from service.core.resources import resource_of
from service.core.skipped_rows import log_skipped_row
from service.db.models import Attempt, Checkpoint, Event, Job
from service.jobs.conditions import condition_resource
from service.jobs.parameters import Reported
from trainyard.contract.advice import advise
from trainyard.contract.evaluation_metric import choose_evaluation
from trainyard.contract.failure_summaries import summarize_failure
from trainyard.contract.layout import RunLayout
from trainyard.contract.loss_metric import choose_loss
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.data_accounts import DataAccount, DataAccounts
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import (
    MAX_SHOWN_METRICS,
    Advice,
    AttemptResource,
    EventResource,
    FailureSummary,
    JobProgress,
    JobResource,
)
from trainyard.contract.wire.launch import Origin
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.reports import UNKNOWN_STEP, Failure

_MAX_SUMMARY = 500
T = TypeVar("T")
R = TypeVar("R")

_LOSSES = ("train/loss", "eval/loss")
_ENGINE_METRICS = ("train/", "eval/")
"""Prefixes of the metrics that are shown first; the table of jobs and the sweeps use them."""


def shown_metrics(latest: Mapping[str, Any], first: str | None = None) -> dict[str, Any]:
    """Return the metrics that a resource or stream carries: all, or if there are many, `first`, the engine's own and
    the next. Metrics of the system are only curves."""
    latest = {name: value for name, value in latest.items() if not name.startswith(SYSTEM_PREFIXES)}
    if len(latest) <= MAX_SHOWN_METRICS:
        return latest
    losses = {*_LOSSES, choose_loss(latest)}

    def order(name: str) -> tuple[bool, bool, bool, str]:
        return name != first, name not in losses, not name.startswith(_ENGINE_METRICS), name

    return {name: latest[name] for name in sorted(latest, key=order)[:MAX_SHOWN_METRICS]}


def job_resource(
    job: Job, attempt: Attempt | None, run: RunLayout, now: datetime, *, in_list: bool = False
) -> JobResource:
    """Return a job with its current attempt.

    Args:
        in_list: Whether the parameters, tags and notes are bounded for a list of jobs.
    """
    reported = Reported.from_json(job.parameters).shown(in_list=in_list)
    failure = Failure.model_validate(job.failure) if job.failure else None
    metrics = shown_metrics(job.latest)
    return resource_of(
        JobResource,
        job,
        condition=condition_resource(job),
        estimated_start=attempt.estimated_start if attempt and job.status == "pending" else None,
        progress=progress_resource(job, now),
        attempt=attempt_resource(attempt) if attempt else None,
        metrics=metrics,
        metrics_omitted=max(0, sum(not name.startswith(SYSTEM_PREFIXES) for name in job.latest) - MAX_SHOWN_METRICS),
        loss_metric=choose_loss(job.latest),
        evaluation_metric=choose_evaluation(metrics, job.spec),
        origin=Origin.model_validate(job.origin) if job.origin else None,
        error=failure,
        advice=[] if in_list else _advice(job),
        failure_summary=None if in_list else _summary(job, failure),
        metadata=job.labels,
        values=None,
        parameters=reported.parameters,
        tags=reported.tags,
        notes=reported.notes,
        archived=job.archived_at is not None,
        run_directory=str(run.root),
    )


def _advice(job: Job) -> list[Advice]:
    """Return what would make a running job faster or cheaper."""
    if job.status != "running":
        return []
    return advise(job.spec, job.latest, job_id=job.id, step=job.last_checkpoint_step)


def _summary(job: Job, failure: Failure | None) -> FailureSummary | None:
    if failure is None:
        return None
    return summarize_failure(failure, job.spec, job_id=job.id, step=job.last_checkpoint_step)


def progress_resource(job: Job, now: datetime) -> JobProgress | None:
    """Return the last reported progress, with an ETA while the job is running and not suspended."""
    if job.progress is None:
        return None
    progress = JobProgress.model_validate(job.progress)
    if job.status != "running":
        return progress.model_copy(update={"phase": None, "phase_done": None, "phase_total": None})
    left = _seconds_left(progress)
    if job.condition == "suspended" or left is None:
        return progress
    reported = datetime.fromisoformat(job.progress["reported_at"])
    return progress.model_copy(update={"eta_seconds": max(0.0, left - (now - reported).total_seconds())})


def _seconds_left(progress: JobProgress) -> float | None:
    """Return the time that was left at the report: the worker's own estimate, which counts evaluations and checkpoints,
    or an estimate from the steps for programs that report none. None if it is unknown."""
    left, pace = progress.seconds_left, progress.seconds_per_step
    if left is None and pace is not None and progress.total_steps and progress.phase != "exporting":
        left = (progress.total_steps - progress.step) * pace
    return left if left is not None and math.isfinite(left) else None


def attempt_resource(attempt: Attempt) -> AttemptResource:
    return resource_of(
        AttemptResource,
        attempt,
        started_at=attempt.claimed_at,
        execution=attempt.reported_execution,
        resumed_from_step=None if attempt.resumed_from_step == UNKNOWN_STEP else attempt.resumed_from_step,
        failure=_failure_summary(attempt),
    )


def _failure_summary(attempt: Attempt) -> str | None:
    """Return the failure in the attempt's exit record; None without a record, or if a former release stored an invalid
    record."""
    failure = (attempt.finish or {}).get("failure")
    try:
        return Failure.model_validate(failure).summary[:_MAX_SUMMARY] if failure else None
    except ValidationError:
        return None


def data_accounts(events: Sequence[Event]) -> DataAccounts:
    """Return the newest account of each source in these events, which are in their order."""
    accounts: dict[str, DataAccount] = {}
    for event in events:
        with suppress(ValidationError):
            account = DataAccount.model_validate(event.data)
            accounts[account.section] = account
    return DataAccounts(data=list(accounts.values()))


def event_resource(job_id: str, event: Event) -> EventResource:
    return resource_of(EventResource, event, id=f"evt_{event.sequence}", job_id=job_id)


def checkpoint_resource(job_id: str, checkpoint: Checkpoint, run: RunLayout) -> CheckpointResource:
    path = str(run.checkpoint(checkpoint.step).root)
    return resource_of(CheckpointResource, checkpoint, job_id=job_id, path=path, latest=False, best=False)


def page_of(rows: Sequence[T], has_more: bool, convert: Callable[[T], R], identify: Callable[[T], str]) -> Page[R]:
    """Return the envelope of a page of a list; `last_id` is the `after` of the next page.

    A row that cannot be shown is left out and logged once; it would make the whole list unreadable.
    """
    data: list[R] = []
    for row in rows:
        try:
            data.append(convert(row))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log_skipped_row((type(row).__name__, getattr(row, "pk", identify(row))), error)
    return Page(
        data=data,
        first_id=identify(rows[0]) if rows else None,
        last_id=identify(rows[-1]) if rows else None,
        has_more=has_more,
    )
