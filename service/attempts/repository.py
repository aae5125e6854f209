"""All SQL of the worker protocol: claims, events and checkpoints of a job."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from service.db.models import Attempt, Checkpoint, Event, JobParameter
from service.db.repository import Repository
from service.jobs.parameters import Entry
from trainyard.contract.parameter_text import index_text

MAX_CHECKPOINTS = 1000
"""Maximum number of checkpoints of a job. Rows remain after their files, so a long job reaches this."""


class AttemptRepository(Repository):
    """Reports of workers within a session."""

    def claim(self, attempt_id: str, nonce: str, now: datetime, nodes: list[str]) -> bool:
        """Compare and set the claim: one claimant for each attempt, whose repeated request succeeds again."""
        unclaimed = sa.or_(Attempt.claim_nonce.is_(None), Attempt.claim_nonce == nonce)
        statement = sa.update(Attempt).where(Attempt.id == attempt_id, unclaimed, Attempt.ended_at.is_(None))
        values = {
            "claim_nonce": nonce,
            "claimed_at": sa.func.coalesce(Attempt.claimed_at, sa.literal(now, Attempt.claimed_at.type)),
            "heartbeat_at": now,
            "nodes": nodes,
        }
        result = self._session.execute(statement.values(values).execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount == 1

    def has_event(self, job_pk: int, execution: int, worker_sequence: int) -> bool:
        query = sa.select(Event.pk).where(
            Event.job_pk == job_pk, Event.execution == execution, Event.worker_sequence == worker_sequence
        )
        return self._session.scalar(query) is not None

    def count_events(self, job_pk: int, type_: str) -> int:
        query = sa.select(sa.func.count()).select_from(Event).where(Event.job_pk == job_pk, Event.type == type_)
        return self._session.scalar(query) or 0

    def save_parameters(self, job_id: str, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> None:
        """Replace the rows by which job lists are filtered where they differ."""
        old = {(name, index_text(value)) for name, (_, value) in before.items()}
        new = {(name, index_text(value)) for name, (_, value) in after.items()}
        row = sa.tuple_(JobParameter.key, JobParameter.value)
        stale = sorted(old - new)
        for start in range(0, len(stale), 400):
            condition = (JobParameter.job_id == job_id, row.in_(stale[start : start + 400]))
            self._session.execute(sa.delete(JobParameter).where(*condition))
        rows = [{"key": key, "value": value, "job_id": job_id} for key, value in sorted(new - old)]
        if rows:
            self._session.execute(sa.insert(JobParameter), rows)

    def find_checkpoint(self, job_pk: int, step: int) -> Checkpoint | None:
        return self._session.scalar(sa.select(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step == step))

    def forget_checkpoints(self, job_pk: int, newest: Checkpoint) -> None:
        """Delete the rows beyond `MAX_CHECKPOINTS`: deleted checkpoints first, then the lowest steps; not the newest.

        The files of checkpoints that are not deleted stay in the run directory.
        """
        of_job = Checkpoint.job_pk == job_pk
        count = self._session.scalar(sa.select(sa.func.count()).select_from(Checkpoint).where(of_job)) or 0
        if count <= MAX_CHECKPOINTS:
            return
        is_gone = sa.and_(Checkpoint.deleted_at.is_not(None), Checkpoint.removing.is_(False))
        order = (sa.case((is_gone, 0), else_=1), Checkpoint.step)
        others = sa.select(Checkpoint.id).where(of_job, Checkpoint.id != newest.id).order_by(*order)
        ids = list(self._session.scalars(others.limit(count - MAX_CHECKPOINTS)))
        self._session.execute(sa.delete(Checkpoint).where(Checkpoint.id.in_(ids)))

    def mark_checkpoints_deleted(self, job_pk: int, steps: Sequence[int], now: datetime) -> None:
        """Record that the files of these steps' checkpoints were deleted."""
        update = sa.update(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step.in_(steps))
        self._session.execute(update.values(deleted_at=now))
