"""Which queued jobs are not submitted yet: other jobs, maintenance mode, GPU quota, a sweep's limit. Pure functions."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from service.db.models import Job
from service.jobs.conditions import Condition, minute_text
from service.jobs.quota import UserQuotas
from trainyard.contract.wire.cluster import MaintenanceResource

WAITS = frozenset({"maintenance", "after", "after_failed", "after_deleted"})
"""Conditions whose end is stated at once: the job may then wait for its turn."""
_NO_MAINTENANCE = MaintenanceResource(active=False)


@dataclass(frozen=True)
class QuotaEntry:
    """An unfinished job, as far as limits apply to it."""

    job_pk: int
    job_id: str
    user: str
    role: str
    gpus: int
    waiting: bool
    """True: to be submitted. False: the scheduler has or may have the job."""
    sweep: str | None = None
    sweep_parallel: int | None = None
    """How many members of the sweep may be at the scheduler at once."""
    project: str | None = None


def quota_entry(job: Job) -> QuotaEntry:
    """Return the quota entry of an unfinished job."""
    waiting = job.status == "queued" and job.desired == "run"
    # A paused job has no entry in the scheduler's queue, nor has a queued job that is being paused or cancelled.
    gpus = 0 if job.status in ("queued", "paused") and not waiting else job.gpus
    return QuotaEntry(
        job_pk=job.pk,
        job_id=job.id,
        user=job.created_by,
        role=job.submitter_role,
        gpus=gpus,
        waiting=waiting,
        project=job.project,
        sweep=job.sweep_id,
        sweep_parallel=job.sweep_parallel,
    )


def blocked_jobs(
    jobs: Sequence[QuotaEntry],
    quotas: UserQuotas,
    maintenance: MaintenanceResource = _NO_MAINTENANCE,
    waiting: Mapping[int, Condition] = MappingProxyType({}),
    projects: Mapping[str, int] = MappingProxyType({}),
) -> Mapping[int, Condition]:
    """Return the waiting jobs that are not submitted yet, with the condition of each.

    A job that waits for its sweep or for its prerequisites does not block its user's other jobs.

    Args:
        jobs: All unfinished jobs, oldest first.
        waiting: The conditions of jobs with prerequisites that are not met.
        projects: The GPU quota of each project that has one.
    """
    held = {job.job_pk: waiting[job.job_pk] for job in jobs if job.waiting and job.job_pk in waiting}
    jobs = [job for job in jobs if job.job_pk not in held]
    if maintenance.active:
        reason = f" ({maintenance.message})" if maintenance.message else ""
        since = minute_text(maintenance.since) if maintenance.since else ""
        condition = Condition("maintenance", {"since": since, "reason": reason})
        return {**dict.fromkeys((job.job_pk for job in jobs if job.waiting), condition), **held}
    over_sweep = over_sweep_limit(jobs)
    over_quota = over_gpu_quota([job for job in jobs if job.job_pk not in over_sweep], quotas)
    admitted = [job for job in jobs if job.job_pk not in over_sweep and job.job_pk not in over_quota]
    return {**over_quota, **over_project_quota(admitted, projects), **over_sweep, **held}


def over_gpu_quota(jobs: Sequence[QuotaEntry], quotas: UserQuotas) -> Mapping[int, Condition]:
    """Return the waiting jobs beyond their user's GPU quota, with the condition of each.

    A user's jobs start in the order of their creation: a small job does not overtake a large job that waits for quota.
    """
    used: dict[str, int] = defaultdict(int)
    for job in jobs:
        used[job.user] += 0 if job.waiting else job.gpus
    blocked: dict[int, Condition] = {}
    first_blocked: dict[str, str] = {}
    several_blocked: set[str] = set()
    for job in jobs:
        limit = quotas.gpu_quota(job.role)
        if not job.waiting or limit is None:
            continue
        if job.user in several_blocked:
            # This message does not depend on the position: each new message costs a transaction and an event per job.
            blocked[job.job_pk] = _quota(f"Waiting for GPU quota: older jobs of {job.user} are ahead.")
        elif job.user in first_blocked:
            several_blocked.add(job.user)
            text = f"Waiting for GPU quota: {first_blocked[job.user]} of the same user is ahead."
            blocked[job.job_pk] = _quota(text)
        elif used[job.user] + job.gpus > limit:
            blocked[job.job_pk] = _quota(_over_quota_message(job, used[job.user], limit))
            first_blocked[job.user] = job.job_id
        else:
            used[job.user] += job.gpus
    return blocked


def over_project_quota(jobs: Sequence[QuotaEntry], limits: Mapping[str, int]) -> Mapping[int, Condition]:
    """Return the waiting jobs beyond their project's GPU quota, with the condition of each.

    The jobs of a project start in the order of their creation, whoever submitted them.
    """
    used = Counter[str]()
    for job in jobs:
        used[job.project or ""] += 0 if job.waiting else job.gpus
    blocked: dict[int, Condition] = {}
    full: set[str] = set()
    for job in jobs:
        name = job.project
        limit = limits.get(name) if name is not None and job.waiting else None
        if name is None or limit is None:
            continue
        if name in full:
            text = f"Waiting for GPU quota: older jobs of the project {name} are ahead."
            blocked[job.job_pk] = _quota(text)
        elif used[name] + job.gpus > limit:
            full.add(name)
            blocked[job.job_pk] = _quota(_over_project_message(job, name, used[name], limit))
        else:
            used[name] += job.gpus
    return blocked


def over_sweep_limit(jobs: Sequence[QuotaEntry]) -> Mapping[int, Condition]:
    """Return the waiting members beyond their sweep's concurrency limit, with the condition of each.

    The oldest members start first.
    """
    members = [job for job in jobs if job.sweep is not None and job.sweep_parallel is not None]
    used = Counter(job.sweep for job in members if not job.waiting and job.gpus)
    blocked: dict[int, Condition] = {}
    for job in members:
        limit = job.sweep_parallel
        if not job.waiting or limit is None:
            continue
        if used[job.sweep] >= limit:
            count = "1 job" if limit == 1 else f"{limit} jobs"
            blocked[job.job_pk] = Condition("sweep_limit", {"sweep": str(job.sweep), "limit": count})
        else:
            used[job.sweep] += 1
    return blocked


def _quota(text: str) -> Condition:
    return Condition("gpu_quota", {"details": text})


def _over_project_message(job: QuotaEntry, project: str, used: int, limit: int) -> str:
    remedy = "an administrator can raise it: trainyard projects set"
    if job.gpus > limit:
        quota = f"the limit of the project {project} is {limit}"
        return f"Exceeds the GPU quota: needs {job.gpus} GPUs, and {quota}. It cannot start; {remedy}."
    needs = f"this job needs {job.gpus}"
    return f"Waiting for GPU quota: the project {project} uses {used} of {limit} GPUs, and {needs}; {remedy}."


def _over_quota_message(job: QuotaEntry, used: int, limit: int) -> str:
    if job.gpus > limit:
        return f"Exceeds the GPU quota: needs {job.gpus} GPUs, and the limit is {limit} per user. It cannot start."
    return f"Waiting for GPU quota: {job.user} uses {used} of {limit} GPUs, and this job needs {job.gpus}."
