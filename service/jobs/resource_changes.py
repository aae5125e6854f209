"""Other resources for a job that does not run: partitions, accounts and limits of a site change while it waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.core.errors import ConflictError
from service.db.models import Job
from service.jobs.repository import JobRepository
from service.jobs.service import RETRY, JobAction
from service.jobs.table.values import spec_values

RESOURCES_CHANGED = "resources_changed"
_REMEDIES = {
    "pausing": "change its resources when it is paused",
    "cancelling": "change its resources when it is cancelled",
    "queued": "a retry with other resources submits it anew, from its last checkpoint",
    "submitting": "a retry with other resources submits it anew, from its last checkpoint",
    "succeeded": "a job that has succeeded does not run again; fork it",
}
"""The advice for each status in which a pause is not the way to other resources."""


@dataclass(frozen=True)
class ResourceChange:
    """The resources of a job's spec before and after a change, which was checked like a new spec."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def describe(self) -> str:
        """Return each field that changes, such as `partition: a -> b`."""
        names = sorted(name for name in {*self.before, *self.after} if self.before.get(name) != self.after.get(name))
        return ", ".join(f"{name}: {_text(self.before.get(name))} -> {_text(self.after.get(name))}" for name in names)


def merge(resources: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return resources with changes; None removes a field, and a mapping changes single entries."""
    merged = dict(resources)
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = merge(merged[name], value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def with_resources(action: JobAction, change: ResourceChange, *, resubmits: bool) -> JobAction:
    """Return an action that lets a job run again, after its resources have been changed.

    Args:
        resubmits: Whether a job that waits to be submitted is submitted anew, even if an earlier answer would make it
            wait longer.
    """

    def changed(jobs: JobRepository, job: Job, by: str) -> None:
        if job.spec["resources"] != change.before:
            raise ConflictError(f"the resources of job {job.id} have changed meanwhile; try again", code="job_changed")
        if resubmits and job.status in ("queued", "submitting") and job.desired == "run":
            _withdraw(jobs, job)
            message = f"submission with other resources requested by {by}"
            jobs.add_event(job, RETRY, message, data={"from": "checkpoint"})
        elif job.status in ("paused", "failed", "cancelled"):
            action(jobs, job, by)
        else:
            remedy = _REMEDIES.get(job.status, "pause it, and resume it with other resources when it is paused")
            raise ConflictError(f"job {job.id} has status {job.status}; {remedy}", code="job_active")
        before = spec_values(job.spec)
        job.spec = {**job.spec, "resources": dict(change.after)}
        jobs.save_values(job, before, spec_values(job.spec))
        jobs.add_event(job, RESOURCES_CHANGED, f"resources changed by {by}: {change.describe()}")

    return changed


def _withdraw(jobs: JobRepository, job: Job) -> None:
    """End the attempt of a waiting job, if it has any. The scheduler has no entry of it."""
    if job.status == "queued":
        return
    attempt = jobs.current_attempts([job])[job.id]
    if attempt.last_submit_at is not None or attempt.scheduler_id is not None:
        message = f"job {job.id} is being submitted; pause it to change its resources, or try again when it waits"
        raise ConflictError(message, code="job_active")
    attempt.ended_at, attempt.exit_reason = jobs.now, "paused"
    jobs.transition(job, "queued", "Withdrawn to be submitted with other resources.")


def _text(value: object) -> str:
    return "default" if value is None else str(value)
