"""Rows of sweeps as resources: the members with their states, values and ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from service.checkpoints.ranking import best_criterion
from service.core.resources import resource_of
from service.db.models import Job, Sweep, SweepTrial
from service.jobs.schemas import progress_resource, shown_metrics
from service.plugins.sweeps.repository import SweepRepository
from service.plugins.sweeps.search.plan import SearchPlan
from service.plugins.sweeps.search.trials import finite, trial_of
from trainyard.contract.loss_metric import choose_loss
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import MemberState, SweepDetail, SweepMember, SweepResource

_FALLBACK_METRIC = "train/loss"
_STATES: Mapping[str, MemberState] = {
    "queued": "waiting",
    "submitting": "waiting",
    "pending": "waiting",
    "paused": "paused",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""A job with any other status counts as running."""


def sweep_resources(repository: SweepRepository, sweeps: Sequence[Sweep]) -> list[SweepResource]:
    """Return sweeps without their members."""
    ids = [sweep.id for sweep in sweeps]
    counts = repository.count_by_status(ids)
    sizes = repository.count_trials(ids)
    return [
        resource_of(SweepResource, sweep, **_fields(sweep, counts.get(sweep.id, {}), sizes.get(sweep.id)))
        for sweep in sweeps
    ]


def sweep_detail(repository: SweepRepository, sweep: Sweep, now: datetime) -> SweepDetail:
    """Return a sweep with its members."""
    jobs = repository.list_jobs(sweep.id)
    by_id = {job.id: job for job in jobs}
    trials = repository.list_trials(sweep.id) if sweep.search is not None else []
    listed = _listed(sweep, trials)
    plan = SearchPlan.model_validate(sweep.search) if sweep.search is not None else None
    metric, mode = (plan.metric, plan.mode) if plan else _criterion(jobs)
    members = [_member(number, one, by_id.get(one["job_id"]), metric, now) for number, one in enumerate(listed)]
    if plan is not None:
        pairs = zip(members, trials, strict=True)
        members = [_with_results(member, trial, by_id.get(trial.job_id or ""), metric) for member, trial in pairs]
    members = _ranked(members, plan, -1.0 if mode == "max" else 1.0)
    best = next((member.job_id for member in members if member.rank == 1), None)
    return resource_of(
        SweepDetail,
        sweep,
        **_fields(sweep, dict(Counter(job.status for job in jobs)), len(listed)),
        members=members,
        metric=metric,
        mode=mode,
        best=best,
        search=plan.search if plan else None,
        rung_steps=list(plan.rung_steps) if plan else [],
        gpu_seconds=round(repository.gpu_seconds(sweep.id, now), 3),
        importance=(sweep.importance or {}).get("shares", {}),
    )


def _listed(sweep: Sweep, trials: Sequence[SweepTrial]) -> list[dict[str, Any]]:
    if sweep.search is None:
        return sweep.members
    return [{"job_id": trial.job_id or "", "values": trial.values, "message": trial.message} for trial in trials]


def _criterion(jobs: Sequence[Job]) -> tuple[str, Literal["min", "max"]]:
    """Return the metric by which the members of a grid are ranked, and its mode."""
    criterion = best_criterion((jobs[0].spec.get("checkpoint") or {}).get("keep_best") if jobs else None)
    has_metric = any(criterion.metric in job.latest for job in jobs)
    if not has_metric and any(_FALLBACK_METRIC in job.latest for job in jobs):
        return _FALLBACK_METRIC, "min"
    return criterion.metric, criterion.mode


def _fields(sweep: Sweep, counts: Mapping[str, int], size: int | None) -> dict[str, Any]:
    """Return the fields that are no columns. `size`: the number of trials, if there are any."""
    search = sweep.search and sweep.search["search"]
    changed = dict.fromkeys(search["space"] if search else (path for one in sweep.members for path in one["values"]))
    return {
        "fields": list(changed),
        "size": len(sweep.members) if size is None else size,
        "counts": counts,
        "algorithm": search["algorithm"] if search else "grid",
        "state": sweep.state or ("finished" if set(counts) <= TERMINAL else "running"),
        "message": sweep.message or "",
    }


def _member(number: int, member: Mapping[str, Any], job: Job | None, metric: str, now: datetime) -> SweepMember:
    job_id, values = member["job_id"], member["values"]
    if not job_id:
        return SweepMember(job_id="", values=values, number=number, state="failed", status_message=member["message"])
    if job is None:
        return SweepMember(job_id=job_id, values=values, number=number, state="deleted", status_message="deleted")
    is_early = job.status_reason == "stopped_early"
    return SweepMember(
        job_id=job.id,
        values=values,
        status=job.status,
        status_message=job.status_message,
        progress=progress_resource(job, now),
        metrics=shown_metrics(job.latest, metric),
        loss_metric=choose_loss(job.latest),
        number=number,
        state="stopped_early" if is_early else _STATES.get(job.status, "running"),
        value=finite(job.latest.get(metric)),
    )


def _with_results(member: SweepMember, trial: SweepTrial, job: Job | None, metric: str) -> SweepMember:
    results = dict(trial_of(trial, job, metric).results)
    update: dict[str, Any] = {"rungs": {str(step): results[step] for step in sorted(results)}}
    if results and member.state in ("paused", "stopped_early", "waiting"):
        update["value"] = results[max(results)]
    return member.model_copy(update=update)


def _ranked(members: Sequence[SweepMember], plan: SearchPlan | None, sign: float) -> list[SweepMember]:
    """Number the members with a value: members that have passed more rungs first, then by value."""

    def level(member: SweepMember) -> int:
        if plan is None or not plan.rung_steps or member.state == "completed":
            return 0
        return len(plan.rung_steps) + 1 - len(member.rungs)

    order = sorted(
        (level(member), sign * member.value, member.number)
        for member in members
        if member.value is not None and member.state != "failed"
    )
    ranks = {number: rank for rank, (_, _, number) in enumerate(order, start=1)}
    return [member.model_copy(update={"rank": ranks.get(member.number)}) for member in members]
