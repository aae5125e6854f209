"""The next attempt of a job."""

from collections.abc import Sequence
from datetime import datetime

from service.core.ids import new_attempt_id, scheduler_tag
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.node_exclusion import next_excluded
from trainyard.contract.layout import attempt_folder_name
from trainyard.contract.spec.training_spec import TrainingSpec


def new_attempt(
    jobs: JobRepository, job: Job, spec: TrainingSpec, *, instance: str, scheduler: str, now: datetime
) -> Attempt:
    """Make the next attempt of a job, which the caller adds to the session."""
    restarts = max(0, spec.restart.max_retries - job.retries_used)
    attempt_id = new_attempt_id()
    previous = jobs.get_attempt(job.attempt_id) if job.attempt_id else None
    attempt = Attempt(
        id=attempt_id,
        job_pk=job.pk,
        number=job.attempts + 1,
        folder=attempt_folder_name(job.attempts + 1, attempt_id),
        tag=scheduler_tag(instance, attempt_id),
        scheduler=scheduler,
        token_hash="",
        execution=job.next_execution,
        max_restarts=restarts,
        created_at=now,
        nodes=[],
        absence_checks=0,
        checkpoint_step=newest_step(job),
        excluded_nodes=next_excluded(previous.excluded_nodes, previous.failed_node) if previous else [],
    )
    if previous is not None and previous.failed_node in attempt.excluded_nodes:
        jobs.add_event(
            job,
            "node_excluded",
            f"node {previous.failed_node} is excluded from the next attempt, because it probably caused the "
            f"failure of attempt {previous.number}",
            level="warning",
            data={"node": previous.failed_node, "attempt": previous.number},
        )
    job.attempts += 1
    job.next_execution += restarts + 1
    job.attempt_id = attempt_id
    return attempt


def newest_step(job: Job) -> int | None:
    """Return the step from which a next attempt can continue, as far as is known.

    The service does not see the checkpoints of a script, so the step that it has reached stands for its progress.
    """
    if job.spec["task"] == "script":
        return job.progress["step"] if job.progress else None
    return job.last_checkpoint_step


def full_disks(attempts: Sequence[Attempt]) -> int:
    """Return how many of the newest attempts in a row a full disk ended."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number, reverse=True)
    return next((count for count, each in enumerate(ordered) if each.exit_reason != "disk_full"), len(ordered))
