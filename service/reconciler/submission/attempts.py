"""The next attempt of a job."""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate

from sqlalchemy.orm import Session

from service.cluster.exclusions import ExcludedNode
from service.cluster.repository import ClusterRepository, NodeFaultRepository
from service.core.ids import new_attempt_id, scheduler_tag
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.node_exclusion import next_excluded
from service.specs.site import partition_names
from trainyard.contract.layout import attempt_folder_name
from trainyard.contract.spec.training_spec import NODE_TEST, TrainingSpec

_MAX_NAMED = 5
"""Nodes that the event of an attempt explains; it lists all."""
_MAX_CHARS = 400


def new_attempt(
    jobs: JobRepository,
    job: Job,
    spec: TrainingSpec,
    *,
    instance: str,
    scheduler: str,
    now: datetime,
    avoided: Sequence[ExcludedNode] = (),
) -> Attempt:
    """Make the next attempt of a job, which the caller adds to the session.

    Args:
        avoided: The nodes of this attempt's partitions that all jobs avoid.
    """
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
        cluster_exclusions=fitting([node.name for node in avoided]),
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
    if attempt.cluster_exclusions:
        explain_avoided(jobs, job, attempt, avoided)
    job.attempts += 1
    job.next_execution += restarts + 1
    job.attempt_id = attempt_id
    return attempt


def explain_avoided(jobs: JobRepository, job: Job, attempt: Attempt, avoided: Sequence[ExcludedNode]) -> None:
    """Add an event about the nodes that all jobs avoid, and this attempt with them."""
    causes = [f"{node.name} ({node.cause})" for node in avoided if node.name in attempt.cluster_exclusions]
    named = ", ".join([*causes[:_MAX_NAMED], *(["..."] if len(causes) > _MAX_NAMED else [])])
    message = f"attempt {attempt.number} avoids {named}, as all jobs do now; `trainyard cluster` shows until when"
    data = {"nodes": attempt.cluster_exclusions, "attempt": attempt.number}
    jobs.add_event(job, "node_excluded", message, level="warning", data=data)


def nodes_to_avoid(session: Session, spec: TrainingSpec, backend: str, now: datetime) -> list[ExcludedNode]:
    """Return the nodes that all jobs avoid but tests of nodes, in the partitions where a job may run."""
    if NODE_TEST in spec.metadata:
        return []
    excluded = NodeFaultRepository(session, now).exclusions(backend)
    if not excluded.nodes:
        return []
    return excluded.within(partition_names(spec.resources, ClusterRepository(session).resource(backend, now)))


def fitting(names: Sequence[str]) -> list[str]:
    """Return as many of the names as the option `exclude` of the batch script has room for."""
    ends = accumulate(len(name) + 1 for name in names)
    return [name for name, end in zip(names, ends, strict=True) if end <= _MAX_CHARS]


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
