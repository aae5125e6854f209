"""When a job's points themselves are no longer kept, but for those that its curves are drawn from."""

from datetime import datetime, timedelta

from service.db.engine import Database
from service.metrics.downsampling.downsampler import fold
from service.metrics.repository import CurveRepository
from trainyard.contract.wire.resources import TERMINAL

_BATCHES = 20
"""Of a job, deleted in one transaction: at most 20,000 points."""


def cutoff(now: datetime, days: int | None) -> datetime | None:
    """Jobs that ended before this time lose their points; None: none does. Pure."""
    return None if days is None else now - timedelta(days=days)


def trim(database: Database, before: datetime) -> bool:
    """A small step: choose a job and fold what is left of it, or delete some of its points.

    Returns:
        Whether there is more to do.
    """
    with database.read() as session:
        curves = CurveRepository(session, database)
        deleting = curves.jobs_with_deleted_raw(1)
        old = [] if deleting else curves.old_jobs(before, TERMINAL, 1)
    if deleting:
        ((job_pk, up_to),) = deleting
        with database.write() as session:
            CurveRepository(session, database).delete_raw(job_pk, up_to, _BATCHES)
        return True
    if not old:
        return False
    if not fold(database, old[0]):
        with database.write() as session:
            CurveRepository(session, database).forget_raw(old[0])
    return True
