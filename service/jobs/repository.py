"""All SQL about jobs, attempts and events. `transition` is the only function that changes a status."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session, defer

from service.core.errors import AttemptEndedError, NotFoundError
from service.core.sentences import begin_with_capital
from service.db.json_values import UNDECODABLE
from service.db.listeners import listeners_of
from service.db.models import Attempt, Checkpoint, Event, Execution, Job, JobLabel, ModelVersion, Sweep, SweepTrial
from service.db.paging import PageRequest, fetch_page
from service.db.repository import require_row
from service.jobs.conditions import Condition, columns, condition_resource, needs_user
from service.jobs.dependencies import DependencyRepository
from service.jobs.states import ACTIVE, FINAL_STATUS, check_transition
from service.jobs.table.value_repository import ValueRepository
from service.jobs.table.values import Values
from service.projects.repository import ProjectRepository
from trainyard.contract.wire.jobs import TERMINAL, JobStatus, StatusReason

_JOBS: Any = Job.__table__
_NEXT_SEQUENCE = (
    sa.update(_JOBS)
    .where(_JOBS.c.pk == sa.bindparam("job_pk"))
    .values(sequence=_JOBS.c.sequence + 1, updated_at=sa.bindparam("now"))
    .returning(_JOBS.c.sequence)
)
"""Runs for each event, and is therefore built once, and of the table, which the mapped class takes longer to update."""


class JobRepository:
    """Jobs within a session."""

    def __init__(self, session: Session, now: datetime):
        self._session = session
        self.now = now
        """The time of this transaction."""

    @property
    def projects(self) -> ProjectRepository:
        """The created projects, in the same session."""
        return ProjectRepository(self._session)

    def add(self, *jobs: Job) -> None:
        """Insert new jobs, each with its first two events, with at most one statement per job."""
        for job in jobs:
            job.sequence = 2
            self._session.add(job)
        self._session.flush()
        ValueRepository(self._session).add_jobs(jobs)
        DependencyRepository(self._session).add(jobs)
        self._session.info.setdefault("changed_job_pks", set()).update(job.pk for job in jobs)
        events = []
        for job in jobs:
            self._session.add_all(JobLabel(key=key, value=value, job_id=job.id) for key, value in job.labels.items())
            events.append(self._event(job, 1, "created", f"submitted by {job.created_by}"))
            status = {"status": job.status, "reason": None}
            events.append(self._event(job, 2, "status", job.status_message, data=status))
        self._session.bulk_save_objects(events)
        for listener in listeners_of(self._session):
            listener.status_changed(self._session, jobs, self.now)

    def save_values(self, job: Job, before: Values, after: Values) -> None:
        """Change the values by which the runs table filters."""
        ValueRepository(self._session).replace(job.pk, before, after)

    def get(self, job_id: str) -> Job:
        """Raises NotFoundError: the job does not exist, or its deletion was requested."""
        job = self._session.scalar(sa.select(Job).where(Job.id == job_id, Job.deletion_requested_at.is_(None)))
        return require_row(job, "job", job_id)

    def load(self, job_pk: int) -> Job:
        """Return a job that must exist, whether or not its deletion was requested."""
        return self._session.get_one(Job, job_pk)

    def get_for_update(self, job_pk: int) -> Job:
        """Return the current row and lock it: other writers of the job wait until this transaction ends."""
        query = sa.select(Job).where(Job.pk == job_pk).with_for_update()
        return self._session.scalars(query.execution_options(populate_existing=True)).one()

    def list_active(self, max_queued: int | None = None, also: Sequence[int] = ()) -> list[tuple[Job, Attempt | None]]:
        """Return every job that may need the reconciler, oldest first, with its current attempt.

        The wide columns are not loaded; reading them raises an error.

        Args:
            max_queued: The number of queued jobs to return, the oldest of each user; None: all. Jobs that mostly wait
                for others are returned in addition: members of sweeps with `max_parallel`, and jobs with prerequisites.
            also: Further queued jobs to return, among the jobs with a condition, which keeps them from being submitted.
        """
        condition: sa.ColumnElement[bool] = Job.status.in_([*ACTIVE, "queued", "paused"])
        if max_queued is not None:
            waits = sa.or_(Job.sweep_parallel.is_not(None), Job.has_prerequisites)
            runnable = sa.select(Job.pk).where(Job.status == "queued", Job.desired == "run", ~waits)
            ready = runnable.where(Job.deletion_requested_at.is_(None), Job.condition.is_(None))
            users = self._users_with_queued_jobs()
            oldest = ready.order_by(Job.pk).limit(math.ceil(max_queued / max(1, len(users))))
            chosen = [pk for user in users for pk in self._session.scalars(oldest.where(Job.created_by == user))]
            others = sa.and_(Job.status == "queued", sa.or_(Job.desired != "run", waits))
            condition = sa.or_(Job.status.in_([*ACTIVE, "paused"]), others, Job.pk.in_([*chosen, *also]))
        wide = (Job.spec, Job.labels, Job.progress, Job.latest, Job.parameters, Job.failure)
        query = (
            sa.select(Job, Attempt)
            .outerjoin(Attempt, Attempt.id == Job.attempt_id)
            .where(condition, Job.deletion_requested_at.is_(None))
            .order_by(Job.pk)
            .options(*(defer(column, raiseload=True) for column in wide), defer(Attempt.script, raiseload=True))
        )
        return [(job, attempt) for job, attempt in self._session.execute(query)]

    def _users_with_queued_jobs(self) -> list[str]:
        """Return the users by a look-up in the index for each name; DISTINCT would read every queued job."""
        users = sa.select(sa.func.min(Job.created_by).label("name")).cte("users", recursive=True)
        following = sa.select(sa.func.min(Job.created_by)).where(Job.created_by > users.c.name).correlate(users)
        recursion = sa.select(following.scalar_subquery()).select_from(users).where(users.c.name.is_not(None))
        names = users.union_all(recursion)
        is_queued = sa.exists().where(Job.created_by == names.c.name, Job.status == "queued")
        return list(self._session.scalars(sa.select(names.c.name).where(is_queued).order_by(names.c.name)))

    def count_by_status(self) -> dict[str, int]:
        counts = self._session.execute(sa.select(Job.status, sa.func.count()).group_by(Job.status))
        return {status: count for status, count in counts}

    def newest_change(self) -> datetime | None:
        """Return when a job last changed."""
        return self._session.scalar(sa.select(sa.func.max(Job.updated_at)))

    def list_lost(self, limit: int) -> list[str]:
        """Return the ids of the oldest lost jobs."""
        return list(self._session.scalars(sa.select(Job.id).where(Job.status == "lost").order_by(Job.pk).limit(limit)))

    def count_queued(self, user: str) -> int:
        """Count the user's jobs with the status `queued`, whether or not the caller sees them."""
        query = sa.select(sa.func.count()).where(_JOBS.c.created_by == user, _JOBS.c.status == "queued")
        return self._session.execute(query).scalar() or 0

    def disk_bytes(self, user: str) -> int:
        """Return the bytes of disk space that the user's jobs held when they were last measured."""
        query = sa.select(sa.func.coalesce(sa.func.sum(_JOBS.c.disk_bytes), 0)).where(_JOBS.c.created_by == user)
        return int(self._session.execute(query).scalar() or 0)

    def count_unconfirmed(self) -> int:
        """Count the attempts that were submitted and not yet confirmed by the scheduler."""
        query = sa.select(sa.func.count()).select_from(Job).join(Attempt, Attempt.id == Job.attempt_id)
        unconfirmed = (Attempt.scheduler_id.is_(None), Attempt.last_submit_at.is_not(None))
        return self._session.scalar(query.where(Job.status.in_(("submitting", "cancelling")), *unconfirmed)) or 0

    def current_attempts(self, jobs: Sequence[Job]) -> dict[str, Attempt]:
        """Return the current attempt of each job that has an attempt, by job id, with a single query."""
        by_attempt = {job.attempt_id: job.id for job in jobs if job.attempt_id}
        rows = self._session.scalars(sa.select(Attempt).where(Attempt.id.in_(by_attempt)))
        return {by_attempt[attempt.id]: attempt for attempt in rows}

    def get_attempt(self, attempt_id: str) -> Attempt:
        """Raises NotFoundError."""
        attempt = self._session.get(Attempt, attempt_id)
        if attempt is None:
            raise NotFoundError(f"there is no attempt {attempt_id!r}", code="attempt_not_found")
        return attempt

    def reload_attempt(self, attempt_id: str) -> Attempt:
        """Read the attempt again, after its job was locked."""
        query = sa.select(Attempt).where(Attempt.id == attempt_id)
        return self._session.scalars(query.execution_options(populate_existing=True)).one()

    def lock_attempt(self, attempt_id: str) -> tuple[Attempt, Job]:
        """Return an attempt and its locked job. The job is locked first, so that all its writers lock in the same
        order.

        Raises:
            NotFoundError: There is no such attempt.
        """
        job = self.get_for_update(self.get_attempt(attempt_id).job_pk)
        return self.reload_attempt(attempt_id), job

    def lock_open_attempt(self, attempt_id: str) -> tuple[Attempt, Job]:
        """Return an attempt that may report and its locked job, as `lock_attempt`.

        Raises:
            NotFoundError: There is no such attempt.
            AttemptEndedError: It has ended. Its spool and logs were ingested in that tick; a worker that still runs is
                stopped by the reply to its heartbeat.
        """
        attempt, job = self.lock_attempt(attempt_id)
        if attempt.ended_at is not None:
            raise AttemptEndedError(attempt_id)
        return attempt, job

    def list_attempts(self, job: Job) -> list[Attempt]:
        return list(self._session.scalars(sa.select(Attempt).where(Attempt.job_pk == job.pk).order_by(Attempt.number)))

    def attempts_page(self, job: Job, page: PageRequest) -> tuple[list[Attempt], bool]:
        """Return a page of the job's attempts by number, and whether more follow.

        Raises:
            NotFoundError: the job has no attempt with the id `page.after`.
        """
        after = None
        if page.after is not None:
            row = self._session.get(Attempt, page.after)
            if row is None or row.job_pk != job.pk:
                raise NotFoundError(f"the job has no attempt {page.after}", code="attempt_not_found", param="after")
            after = row.number
        query = sa.select(Attempt).where(Attempt.job_pk == job.pk)
        return fetch_page(self._session, query, Attempt.number, page, after=after)

    def count_restarts(self, attempt: Attempt) -> int:
        """Count the in-place restarts by torchrun, as far as the restarted ranks have reported."""
        query = sa.select(sa.func.max(Execution.number)).where(
            Execution.job_pk == attempt.job_pk, Execution.attempt_id == attempt.id
        )
        return max(0, (self._session.scalar(query) or 0) - attempt.execution)

    def find_attempt(self, job: Job, number: int | None) -> Attempt | None:
        """Return the attempt of that number, or the newest."""
        query = sa.select(Attempt).where(Attempt.job_pk == job.pk).order_by(Attempt.number.desc()).limit(1)
        if number is not None:
            query = query.where(Attempt.number == number)
        return self._session.scalar(query)

    def list_events(self, job: Job, page: PageRequest, *types: str) -> tuple[list[Event], bool]:
        """Return a page of the job's events by sequence, of all types or of these types, and whether more follow."""
        after = None if page.after is None else int(page.after.removeprefix("evt_"))
        query = sa.select(Event).where(Event.job_pk == job.pk, *([Event.type.in_(types)] if types else []))
        return fetch_page(self._session, query, Event.sequence, page, after=after)

    def existing_names(self, names: Iterable[str]) -> set[str]:
        """Return the names that jobs have, among these names."""
        query = sa.select(Job.name).where(Job.name.in_(tuple(names)), Job.deletion_requested_at.is_(None))
        return set(self._session.scalars(query))

    def last_event(self, job: Job, type_: str, *, since: datetime | None) -> Event | None:
        """Return the newest event of a type that is not older than `since`."""
        query = sa.select(Event).where(Event.job_pk == job.pk, Event.type == type_)
        if since is not None:
            query = query.where(Event.created_at >= since)
        return self._session.scalar(query.order_by(Event.sequence.desc()).limit(1))

    def list_checkpoints(self, job: Job, page: PageRequest) -> tuple[list[Checkpoint], bool]:
        """Return a page of the checkpoints that are not deleted, by step, and whether more follow.

        Raises:
            NotFoundError: the job has no checkpoint with the id `page.after`, not even a deleted one.
        """
        after = None
        if page.after is not None:
            after = self._require_checkpoint(job, page.after, "after").step
        query = sa.select(Checkpoint).where(Checkpoint.job_pk == job.pk, Checkpoint.deleted_at.is_(None))
        return fetch_page(self._session, query, Checkpoint.step, page, after=after)

    def checkpoint_steps(self, job: Job) -> list[int]:
        """Return the steps of the checkpoints that are not deleted, in order."""
        query = sa.select(Checkpoint.step).where(Checkpoint.job_pk == job.pk, Checkpoint.deleted_at.is_(None))
        return list(self._session.scalars(query.order_by(Checkpoint.step)))

    def checkpoint_values(self, job: Job, metric: str) -> list[tuple[int, float]]:
        """Return the step and the metric's value of each checkpoint that is not deleted; NaN without a value."""
        # A JSON path cannot have every name: SQLite cannot escape a quote in a name.
        query = sa.select(Checkpoint.step, Checkpoint.metrics)
        query = query.where(Checkpoint.job_pk == job.pk, Checkpoint.deleted_at.is_(None))
        rows = ((step, metrics) for step, metrics in self._session.execute(query) if metrics is not UNDECODABLE)
        return [(step, _to_float(metrics.get(metric))) for step, metrics in rows]

    def get_checkpoint(self, job: Job, checkpoint_id: str) -> Checkpoint:
        """Raises NotFoundError."""
        row = self._require_checkpoint(job, checkpoint_id, "checkpoint_id")
        if row.deleted_at is not None:
            raise _checkpoint_not_found(job, checkpoint_id, "checkpoint_id")
        return row

    def _require_checkpoint(self, job: Job, checkpoint_id: str, param: str) -> Checkpoint:
        row = self._session.get(Checkpoint, checkpoint_id)
        if row is None or row.job_pk != job.pk:
            raise _checkpoint_not_found(job, checkpoint_id, param)
        return row

    def mark_checkpoints_deleted(self, job: Job, *, removing: bool = False) -> int:
        """Mark all checkpoints as deleted and return their number.

        Args:
            removing: Whether the maintenance task removes the files, or else the next execution of the job.
        """
        statement = sa.update(Checkpoint).where(Checkpoint.job_pk == job.pk, Checkpoint.deleted_at.is_(None))
        statement = statement.values(deleted_at=self.now, removing=removing)
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount

    def registered_versions(self, job: Job) -> list[ModelVersion]:
        """Return the versions of registered models that are of the job."""
        query = sa.select(ModelVersion).where(ModelVersion.job_id == job.id)
        return list(self._session.scalars(query.order_by(ModelVersion.model, ModelVersion.number)))

    def member(self, sweep_id: str, job_id: str) -> tuple[int, dict[str, Any]] | None:
        """Return the number of a sweep's member and the values that it changes; None if the sweep does not list it."""
        trial = self._session.scalar(sa.select(SweepTrial).where(SweepTrial.job_id == job_id))
        if trial is not None:
            return trial.number, trial.values
        sweep = self._session.get(Sweep, sweep_id)
        listed = enumerate(sweep.members if sweep is not None else ())
        return next(((number, one["values"]) for number, one in listed if one["job_id"] == job_id), None)

    def next_sequence(self, job: Job) -> int:
        """Return the next sequence number of the job. Other writers of the job wait until this transaction ends."""
        self._session.flush()
        sequence: int = self._session.execute(_NEXT_SEQUENCE, {"job_pk": job.pk, "now": self.now}).scalar_one()
        sa.orm.attributes.set_committed_value(job, "sequence", sequence)
        self._session.info.setdefault("changed_job_pks", set()).add(job.pk)
        return sequence

    def add_event(
        self, job: Job, type_: str, message: str, *, level: str = "info", data: dict[str, Any] | None = None
    ) -> None:
        """Append an event to the job's history; its message begins with a capital."""
        self._session.add(self._event(job, self.next_sequence(job), type_, message, level=level, data=data))

    def _event(
        self,
        job: Job,
        sequence: int,
        type_: str,
        message: str,
        *,
        level: str = "info",
        data: dict[str, Any] | None = None,
    ) -> Event:
        return Event(
            job_pk=job.pk,
            sequence=sequence,
            type=type_,
            level=level,
            message=begin_with_capital(message),
            data=data or {},
            created_at=self.now,
        )

    def _status_event(self, job: Job) -> None:
        level = "error" if job.status == "failed" else "warning" if job.status == "lost" or needs_user(job) else "info"
        condition = condition_resource(job)
        data = {"status": job.status, "reason": job.status_reason, "condition": condition and condition.model_dump()}
        self.add_event(job, "status", job.status_message, level=level, data=data)

    def set_status_message(self, job: Job, message: str, condition: Condition | None = None) -> None:
        """Change the message and the condition of an unchanged status, with an event if the message is another."""
        job.condition, job.condition_data = columns(condition)
        if job.status_message != message:
            job.status_message = message
            self._session.flush()
            self._status_event(job)

    def set_condition(self, job: Job, condition: Condition) -> None:
        """Change the condition within an unchanged status, and the message with it."""
        self.set_status_message(job, condition.message, condition)

    def transition(
        self,
        job: Job,
        target: JobStatus,
        message: str,
        *,
        reason: StatusReason | None = None,
        ended_at: datetime | None = None,
        condition: Condition | None = None,
    ) -> bool:
        """Change the job's status by the table of transitions: a guarded UPDATE and its event in the same transaction.

        Args:
            ended_at: When the job ended, if that was before now and the target is a final status.
            condition: The condition in which the new status begins.

        Returns:
            False if the status in the database is no longer the job's; nothing is changed then.

        Raises:
            IllegalTransitionError: the table has no such transition.
        """
        source = cast(JobStatus, job.status)
        check_transition(source, target, reason)
        values: dict[str, Any] = {"status": target, "status_reason": reason, "status_message": message}
        values["condition"], values["condition_data"] = columns(condition)
        if target in TERMINAL:
            # The run directory is measured once more.
            values |= {"finished_at": ended_at or self.now, "measured_at": None}
        if target == "running" and job.started_at is None:
            values["started_at"] = self.now
        if target == "running" and job.desired == "run":
            values["pause_requested_at"] = None
        elif target == "paused" and job.pause_requested_at is None:
            values["pause_requested_at"] = self.now
        statement = sa.update(Job).where(Job.pk == job.pk, Job.status == source).values(**values)
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        if cast(sa.CursorResult[Any], result).rowcount == 0:
            return False
        self._session.refresh(job)
        self._status_event(job)
        for listener in listeners_of(self._session):
            listener.status_changed(self._session, [job], self.now)
        return True

    def finish(self, job: Job, reason: StatusReason, message: str) -> bool:
        """Change to the final status of a reason."""
        return self.transition(job, FINAL_STATUS[reason], message, reason=reason)


def _checkpoint_not_found(job: Job, checkpoint_id: str, param: str) -> NotFoundError:
    return NotFoundError(f"job {job.id} has no checkpoint {checkpoint_id!r}", code="checkpoint_not_found", param=param)


def _to_float(value: object) -> float:
    """Return a value in a JSON column as a number; NaN if it is none."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def checkpoint_at(session: Session, job: Job, step: int) -> Checkpoint | None:
    """Return the checkpoint of a step, unless it is deleted."""
    query = sa.select(Checkpoint).where(Checkpoint.job_pk == job.pk, Checkpoint.step == step)
    return session.scalar(query.where(Checkpoint.deleted_at.is_(None)))
