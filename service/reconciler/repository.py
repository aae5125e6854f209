"""SQL of the reconciler alone: newest events, users of attempts, and queries after a restore."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import Attempt, CurveRevision, Event, Job, MetricKey
from trainyard.contract.wire.jobs import TERMINAL

_WINDOW = 1000


def newest_event(session: Session) -> tuple[int, int]:
    """Return the newest event's number, and how many events exist among the last 1000 numbers.

    The count changes when an event with an earlier number is committed later.
    """
    last = session.scalar(sa.select(sa.func.max(Event.pk))) or 0
    recent = sa.select(sa.func.count()).select_from(Event).where(Event.pk > last - _WINDOW)
    return last, session.scalar(recent) or 0


def jobs_to_examine(session: Session, recent: timedelta) -> list[int]:
    """Return the jobs that may have an attempt which the database lacks.

    These have not ended, or ended shortly before the newest change: failed and cancelled jobs can be retried.
    """
    newest = session.scalar(sa.select(sa.func.max(Job.updated_at)))
    ended = Job.status.in_(("failed", "cancelled"))
    active = Job.status.not_in(TERMINAL)
    condition = active if newest is None else sa.or_(active, sa.and_(ended, Job.updated_at >= newest - recent))
    query = sa.select(Job.pk).where(condition, Job.deletion_requested_at.is_(None)).order_by(Job.pk)
    return list(session.scalars(query))


def attempt_ids(session: Session, job_pk: int) -> set[str]:
    return set(session.scalars(sa.select(Attempt.id).where(Attempt.job_pk == job_pk)))


def user_of_attempt(session: Session, attempt_id: str) -> str:
    """Return the user of the attempt's job."""
    query = sa.select(Job.created_by).join(Attempt, Attempt.job_pk == Job.pk).where(Attempt.id == attempt_id)
    return session.scalars(query).one()


def unread_attempts(session: Session) -> list[tuple[Job, Attempt]]:
    """Return the ended attempts whose spool is to be read from its start, each with its job."""
    query = (
        sa.select(Job, Attempt)
        .join(Attempt, Attempt.job_pk == Job.pk)
        .where(Attempt.spool_unread, Attempt.ended_at.is_not(None), Job.deletion_requested_at.is_(None))
        .order_by(Attempt.job_pk, Attempt.execution)
    )
    return [(job, attempt) for job, attempt in session.execute(query)]


def withdrawn_attempts(session: Session, since: datetime) -> list[tuple[Job, Attempt]]:
    """Return the attempts that ended after a time without an answer of the scheduler, each with its job."""
    query = (
        sa.select(Job, Attempt)
        .join(Attempt, Attempt.job_pk == Job.pk)
        .where(Attempt.ended_at >= since, Attempt.scheduler_id.is_(None), Attempt.last_submit_at.is_not(None))
        .order_by(Attempt.ended_at)
    )
    return [(job, attempt) for job, attempt in session.execute(query)]


def waiting_jobs_after(session: Session, pk: int, limit: int) -> list[int]:
    """Return the next queued jobs after a key that have a condition, such as a refusal of the scheduler; oldest first.

    They take turns: however many wait, they keep no other job from being loaded. Members of sweeps with `max_parallel`
    and jobs with prerequisites are left out.
    """
    waits = sa.and_(Job.status == "queued", Job.desired == "run", Job.condition.is_not(None))
    alone = sa.and_(Job.sweep_parallel.is_(None), ~Job.has_prerequisites, Job.deletion_requested_at.is_(None))
    return list(session.scalars(sa.select(Job.pk).where(waits, alone, Job.pk > pk).order_by(Job.pk).limit(limit)))


def unexplained_attempts(session: Session, since: datetime, limit: int) -> list[tuple[Job, Attempt]]:
    """Return the newest attempts that ended after a time and whose end the accounting has not explained yet."""
    query = (
        sa.select(Job, Attempt)
        .join(Attempt, Attempt.job_pk == Job.pk)
        .where(Attempt.open_evidence.is_not(None), Attempt.ended_at >= since, Job.deletion_requested_at.is_(None))
        .order_by(Attempt.ended_at.desc())
        .limit(limit)
    )
    return [(job, attempt) for job, attempt in session.execute(query)]


def job_ids(session: Session) -> set[str]:
    """Return the ids of all jobs, including jobs that are being deleted."""
    return set(session.scalars(sa.select(Job.id)))


def find_job(session: Session, job_id: str) -> Job | None:
    return session.scalar(sa.select(Job).where(Job.id == job_id))


def known_tags(session: Session, tags: Sequence[str]) -> set[str]:
    """Return the tags that attempts have, among these tags."""
    chunks = [tags[start : start + 500] for start in range(0, len(tags), 500)]
    return {tag for chunk in chunks for tag in session.scalars(sa.select(Attempt.tag).where(Attempt.tag.in_(chunk)))}


_IN_QUEUE = Attempt.claimed_at.is_(None), Attempt.scheduler_id.is_not(None)


def pending_attempt_ids(session: Session, *, with_exclusions: bool) -> set[str]:
    """Return the attempts that are in the scheduler's queue and have not started.

    Args:
        with_exclusions: Only attempts that avoid nodes because all jobs do.
    """
    query = sa.select(Attempt.id).join(Job, Job.attempt_id == Attempt.id).where(Job.status == "pending")
    if with_exclusions:
        query = query.where(sa.cast(Attempt.cluster_exclusions, sa.Text) != "[]")
    return set(session.scalars(query.where(*_IN_QUEUE)))


def long_pending_ids(session: Session, before: datetime) -> set[str]:
    """Return the attempts in the scheduler's queue, made before a time, that exclude nodes where their jobs failed."""
    query = sa.select(Attempt.id).join(Job, Job.attempt_id == Attempt.id).where(Job.status == "pending", *_IN_QUEUE)
    own = sa.cast(Attempt.excluded_nodes, sa.Text) != "[]"
    return set(session.scalars(query.where(own, Attempt.created_at <= before)))


def jobs_of_attempts(session: Session, ids: Sequence[str]) -> list[tuple[Job, Attempt]]:
    """Return attempts, each with its job."""
    query = sa.select(Job, Attempt).join(Job, Job.pk == Attempt.job_pk).where(Attempt.id.in_(ids))
    return [(job, attempt) for job, attempt in session.execute(query)]


def repeated_steps(session: Session, job_pk: int, executions: range) -> dict[int, list[tuple[str, int]]]:
    """Return how many values of each metric a later value of the same step replaced, by execution; most first."""
    total = sa.func.sum(CurveRevision.repeats)
    query = (
        sa.select(CurveRevision.execution, MetricKey.name, total)
        .join(MetricKey, MetricKey.pk == CurveRevision.key_pk)
        .where(CurveRevision.job_pk == job_pk, CurveRevision.execution.between(executions[0], executions[-1]))
        .where(CurveRevision.repeats > 0, MetricKey.is_of_program())
        .group_by(CurveRevision.execution, MetricKey.name)
        .order_by(CurveRevision.execution, total.desc(), MetricKey.name)
    )
    repeats: dict[int, list[tuple[str, int]]] = {}
    for execution, name, count in session.execute(query):
        repeats.setdefault(execution, []).append((name, int(count)))
    return repeats
