"""The next attempt of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path

from sqlalchemy.orm import Session

from service.cluster.exclusions import ExcludedNode, Exclusions
from service.cluster.repository import ClusterRepository, NodeFaultRepository
from service.core.ids import new_attempt_id, scheduler_tag
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.node_exclusion import affordable, next_excluded
from service.scheduler.base import SubmittedJob
from service.scheduler.launch_document import ranks_per_node
from service.specs.site import partition_names
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.layout import RunLayout, attempt_folder_name
from trainyard.contract.spec.training_spec import NODE_TEST, TrainingSpec
from trainyard.contract.wire.cluster import ClusterResource

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
    choice: "NodeChoice | None" = None,
) -> Attempt:
    """Make the next attempt of a job, which the caller adds to the session."""
    choice = choice or NodeChoice()
    restarts = max(0, spec.restart.max_retries - job.retries_used)
    attempt_id = new_attempt_id()
    previous = jobs.get_attempt(job.attempt_id) if job.attempt_id else None
    failed_on = next_excluded(previous.excluded_nodes, previous.failed_node) if previous else []
    own = choice.own(spec, failed_on)
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
        excluded_nodes=own,
        cluster_exclusions=choice.shared(spec, own),
    )
    if previous is not None and previous.failed_node is not None:
        _explain_failed(jobs, job, previous, is_excluded=previous.failed_node in own)
    if attempt.cluster_exclusions:
        explain_avoided(jobs, job, attempt, choice.avoided)
    job.attempts += 1
    job.next_execution += restarts + 1
    job.attempt_id = attempt_id
    return attempt


def _explain_failed(jobs: JobRepository, job: Job, previous: Attempt, *, is_excluded: bool) -> None:
    """Add an event about the node that made the attempt before fail."""
    cause = f"it probably caused the failure of attempt {previous.number}"
    if is_excluded:
        message = f"node {previous.failed_node} is excluded from the next attempt, because {cause}"
    else:
        message = (
            f"node {previous.failed_node} is used again, although {cause}: too few other nodes are left for the job"
        )
    data = {"node": previous.failed_node, "attempt": previous.number}
    jobs.add_event(
        job, "node_excluded" if is_excluded else "node_exclusion_lifted", message, level="warning", data=data
    )


def explain_avoided(jobs: JobRepository, job: Job, attempt: Attempt, avoided: Sequence[ExcludedNode]) -> None:
    """Add an event about the nodes that all jobs avoid, and this attempt with them."""
    causes = [f"{node.name} ({node.cause})" for node in avoided if node.name in attempt.cluster_exclusions]
    named = ", ".join([*causes[:_MAX_NAMED], *(["..."] if len(causes) > _MAX_NAMED else [])])
    message = f"attempt {attempt.number} avoids {named}, as all jobs do now; `trainyard cluster` shows until when"
    data = {"nodes": attempt.cluster_exclusions, "attempt": attempt.number}
    jobs.add_event(job, "node_excluded", message, level="warning", data=data)


def explain_lifted(jobs: JobRepository, job: Job, attempt: Attempt, nodes: Sequence[str], waited: timedelta) -> None:
    """Add an event about nodes that an attempt may use again: the other nodes may be out of service for days."""
    wait, names = f"has waited for {waited.seconds // 60} minutes", ", ".join(nodes)
    message = f"attempt {attempt.number} {wait}, and may use {names} again, where an earlier attempt failed"
    data = {"nodes": list(nodes), "attempt": attempt.number}
    jobs.add_event(job, "node_exclusion_lifted", message, level="warning", data=data)


@dataclass(frozen=True)
class NodeChoice:
    """The nodes where a job may run, and the nodes that it should avoid."""

    avoided: tuple[ExcludedNode, ...] = ()
    """The nodes of the job's partitions that all jobs avoid."""
    partitions: tuple[Sequence[str], ...] = ()
    """The nodes of each partition of the job, as far as they are known."""

    @classmethod
    def load(cls, session: Session, spec: TrainingSpec, backend: str, now: datetime) -> "NodeChoice":
        """Return the choice of a job. Tests of nodes avoid none."""
        clusters, excluded = ClusterRepository(session), NodeFaultRepository(session, now).exclusions(backend)
        return cls.of(spec, excluded, clusters.resource(backend, now), clusters.members(backend))

    @classmethod
    def of(
        cls, spec: TrainingSpec, excluded: Exclusions, cluster: ClusterResource, members: Mapping[str, Sequence[str]]
    ) -> "NodeChoice":
        """Return the choice of a job in a cluster. `members`: the nodes of each partition."""
        names = partition_names(spec.resources, cluster)
        avoided = () if NODE_TEST in spec.metadata else tuple(excluded.within(names))
        return cls(avoided, tuple(members.get(name, ()) for name in sorted(names)))

    def own(self, spec: TrainingSpec, names: Sequence[str]) -> list[str]:
        """Return the nodes, oldest first, that the job excludes because its attempts failed there."""
        newest_first = affordable(names[::-1], spec_exclusions(spec), self.partitions, node_count(spec))
        return newest_first[::-1]

    def shared(self, spec: TrainingSpec, fixed: Sequence[str]) -> list[str]:
        """Return the nodes that all jobs avoid and this job can avoid, beside the nodes that it excludes itself."""
        names = [node.name for node in self.avoided]
        return fitting(affordable(names, [*spec_exclusions(spec), *fixed], self.partitions, node_count(spec)))


def spec_exclusions(spec: TrainingSpec) -> list[str]:
    """Return the node lists that the spec excludes."""
    return [spec.resources.exclude] if spec.resources.exclude else []


def node_count(spec: TrainingSpec) -> int:
    """Return the number of nodes that a job needs."""
    return spec.gpus // ranks_per_node(spec)


def fitting(names: Sequence[str]) -> list[str]:
    """Return as many of the names as the option `exclude` of the batch script has room for."""
    ends = accumulate(len(name) + 1 for name in names)
    return [name for name, end in zip(names, ends, strict=True) if end <= _MAX_CHARS]


def newest_step(job: Job) -> int | None:
    """Return the step from which a next attempt can continue, as far as is known.

    The service does not see the checkpoints of a script, so the step that it has reached stands for its progress.
    """
    if task_kind(job.spec["task"]).runs_program:
        return job.progress["step"] if job.progress else None
    return job.last_checkpoint_step


def full_disks(attempts: Sequence[Attempt]) -> int:
    """Return how many of the newest attempts in a row a full disk ended."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number, reverse=True)
    return next((count for count, each in enumerate(ordered) if each.exit_reason != "disk_full"), len(ordered))


def submitted_job(runs: Path, job: Job, attempt: Attempt, *, is_stopping: bool = False) -> SubmittedJob:
    """Return an attempt as the scheduler knows it."""
    folder = RunLayout(runs / job.id).attempt(attempt.folder_name).root
    return SubmittedJob(attempt.tag, str(attempt.scheduler_id), folder, job.unix_uid, is_stopping)
