"""Deletion of the points of old jobs. Their downsampled curves stay."""

from datetime import datetime, timedelta

from service.db.engine import Database
from service.metrics.downsampling.downsampler import downsample_job
from service.metrics.repository import CurveRepository
from trainyard.contract.wire.jobs import TERMINAL

_BATCHES_PER_TRANSACTION = 20
"""At most 20,000 points."""


def cutoff(now: datetime, days: int | None) -> datetime | None:
    """Return the time before which a job must have ended to lose its points; None if no job loses them."""
    return None if days is None else now - timedelta(days=days)


def trim(database: Database, before: datetime) -> bool:
    """Do a small step: downsample the pending points of an old job, or delete some of its points.

    Returns:
        Whether there is more to do.
    """
    with database.read() as session:
        curves = CurveRepository(session, database)
        deleting = curves.jobs_with_points_to_delete(1)
        expired = [] if deleting else curves.expired_jobs(before, TERMINAL, 1)
    if deleting:
        ((job_pk, up_to),) = deleting
        with database.write() as session:
            CurveRepository(session, database).delete_points(job_pk, up_to, _BATCHES_PER_TRANSACTION)
        return True
    if not expired:
        return False
    if not downsample_job(database, expired[0]):
        with database.write() as session:
            CurveRepository(session, database).mark_points_deleted(expired[0])
    return True
