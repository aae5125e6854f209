"""Pending attempts avoid the nodes that all jobs avoid, too: most of a queue was submitted before the first fault."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from service.cluster.exclusions import WINDOW, ExcludedNode
from service.cluster.repository import ClusterRepository, NodeFaultRepository
from service.core.clock import Clock
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.repository import jobs_of_attempts, long_pending_ids, pending_attempt_ids
from service.reconciler.submission.attempts import (
    NodeChoice,
    explain_avoided,
    explain_lifted,
    spec_exclusions,
    submitted_job,
)
from service.scheduler.base import QueueEditor, Scheduler, SchedulerUnavailableError
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import TrainingSpec

log = structlog.get_logger("queue-exclusion")

_RETRY = timedelta(seconds=60)
_MAX_JOBS = 200
"""Maximum number of jobs per call of the scheduler, and per tick."""


_Group = tuple[int | None, tuple[str, ...]]


@dataclass(frozen=True)
class _Change:
    """The excluded nodes that a pending attempt is to have."""

    job: Job
    attempt: Attempt
    cluster_exclusions: list[str]
    new: list[ExcludedNode]
    fixed: tuple[str, ...]
    """The nodes that its spec, and its own earlier attempts, exclude."""
    own: list[str]
    """The nodes that its own earlier attempts exclude."""

    @property
    def group(self) -> _Group:
        """The Unix account and the nodes; a call of the scheduler changes all attempts of the group."""
        return self.job.unix_uid, tuple(dict.fromkeys([*self.fixed, *self.cluster_exclusions]))


@dataclass
class QueueExclusion:
    """Changes the excluded nodes of pending attempts when a node begins or ceases to be excluded for all jobs."""

    database: Database
    clock: Clock
    scheduler: Scheduler
    lease: LeaderLease
    runs: Path
    _state: object = field(default=None, init=False)
    """The excluded nodes, and the nodes of each partition."""
    _examined: set[str] = field(default_factory=set, init=False)
    """The attempts that agree with `_state`. Empty after a restart."""
    _failures: Counter[_Group] = field(default_factory=Counter, init=False)
    _next_try: datetime | None = field(default=None, init=False)

    def run_once(self) -> None:
        """Change up to `_MAX_JOBS` attempts; the next calls continue.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service is the leader.
        """
        now = self.clock()
        if not isinstance(self.scheduler, QueueEditor) or (self._next_try is not None and now < self._next_try):
            return
        with self.database.read() as session:
            changes = self._changes(session, now)
        # A group that Slurm refuses does not keep the others from being changed.
        for group in sorted({change.group for change in changes}, key=self._failures.__getitem__):
            try:
                self._apply(self.scheduler, [change for change in changes if change.group == group], group[1])
            except SchedulerUnavailableError as error:
                log.warning("excluded nodes of pending jobs could not be changed", error=str(error))
                self._failures[group] += 1
                self._next_try = now + _RETRY
                return

    def _changes(self, session: Session, now: datetime) -> list[_Change]:
        backend = self.scheduler.name
        clusters = ClusterRepository(session)
        members, excluded = clusters.members(backend), NodeFaultRepository(session, now).exclusions(backend)
        state = {(node.name, node.partitions) for node in excluded.nodes}, members
        if state != self._state:
            self._state, self._examined, self._failures = state, set(), Counter()
        pending = pending_attempt_ids(session, with_exclusions=not excluded.nodes)
        self._examined &= pending
        ids = sorted((pending - self._examined) | long_pending_ids(session, now - WINDOW))[:_MAX_JOBS]
        if not ids:
            return []
        cluster = clusters.resource(backend, now)
        changes = []
        for job, attempt in jobs_of_attempts(session, ids):
            spec = parse_stored_spec(job.spec)
            choice = NodeChoice.of(spec, excluded, cluster, members)
            own = attempt.excluded_nodes if attempt.created_at > now - WINDOW else []
            if (change := _change(job, attempt, spec, choice, own)) is not None:
                changes.append(change)
            else:
                self._examined.add(attempt.id)
        return changes

    def _apply(self, editor: QueueEditor, changes: Sequence[_Change], nodes: Sequence[str]) -> None:
        editor.exclude_nodes([submitted_job(self.runs, change.job, change.attempt) for change in changes], nodes)
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            for change in changes:
                job, attempt = jobs.get_for_update(change.job.pk), jobs.get_attempt(change.attempt.id)
                lifted = [name for name in attempt.excluded_nodes if name not in change.own]
                attempt.cluster_exclusions, attempt.excluded_nodes = change.cluster_exclusions, change.own
                if lifted and job.attempt_id == attempt.id:
                    explain_lifted(jobs, job, attempt, lifted, WINDOW)
                if change.new and job.attempt_id == attempt.id:
                    explain_avoided(jobs, job, attempt, change.new)
                self._examined.add(attempt.id)


def _change(job: Job, attempt: Attempt, spec: TrainingSpec, choice: NodeChoice, own: Sequence[str]) -> _Change | None:
    """Return the necessary change, if any. An attempt that was made after the exclusion has had it from its beginning,
    unless the scheduler refused it."""
    fixed = (*spec_exclusions(spec), *own)
    stays = [node for node in choice.avoided if node.name in attempt.cluster_exclusions]
    new = [node for node in choice.avoided if node.since > attempt.created_at and node.name not in fixed]
    new = [node for node in new if node not in stays]
    expected = replace(choice, avoided=(*stays, *new)).shared(spec, own)
    if expected == attempt.cluster_exclusions and list(own) == attempt.excluded_nodes:
        return None
    return _Change(job, attempt, expected, [node for node in new if node.name in expected], fixed, list(own))
