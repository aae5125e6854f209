"""Where a log was at a time, or at a step of the training."""

from datetime import datetime

from service.core.errors import InvalidRequestError, NotFoundError
from service.db.engine import Database
from service.jobs.repository import JobRepository
from service.logs.repository import LogRepository
from service.logs.service import find_log
from trainyard.contract.wire.logs import LogPosition


def find_position(
    database: Database,
    job_id: str,
    rank: str,
    *,
    attempt: int | None,
    time: datetime | None,
    step: int | None,
    now: datetime,
) -> LogPosition:
    """Return where the log was at a time, or when a step was done.

    Args:
        attempt: Default: the newest; of a step, the newest that did it.

    Raises:
        InvalidRequestError: Neither a time nor a step is given, or both.
        NotFoundError: There is no such job, attempt, log or step.
    """
    if (time is None) == (step is None):
        raise InvalidRequestError("give either `time` or `step`", param="time")
    with database.read() as session:
        jobs, logs = JobRepository(session, now), LogRepository(session, database)
        job = jobs.get(job_id)
        if step is not None:
            done = logs.time_of_step(job.pk, step, jobs.find_attempt(job, attempt) if attempt else None)
            if done is None:
                raise NotFoundError(
                    f"the job has no point at step {step} or later", param="step", code="step_not_found"
                )
            time, execution = done
            attempt = attempt or logs.attempt_of_execution(job.pk, execution)
        assert time is not None
        row, size = find_log(session, logs, job_id, rank, attempt, now)
        if row is None:
            raise NotFoundError("the job has no attempt yet", param="attempt", code="attempt_not_found")
        offset = logs.offset_at(row.id, rank, time)
        return LogPosition(attempt=row.number, rank=rank, offset=size if offset is None else offset, time=time)
