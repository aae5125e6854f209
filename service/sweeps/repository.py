"""All SQL about sweeps."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import NotFoundError
from service.db.models import Job, Sweep
from service.db.paging import PageRequest, fetch_page


class SweepRepository:
    """Sweeps within one session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, sweep: Sweep) -> None:
        self._session.add(sweep)

    def get(self, sweep_id: str) -> Sweep:
        """Raises NotFoundError."""
        sweep = self._session.get(Sweep, sweep_id)
        if sweep is None:
            raise NotFoundError(f"there is no sweep {sweep_id!r}", code="sweep_not_found", param="sweep_id")
        return sweep

    def list_page(self, page: PageRequest) -> tuple[list[Sweep], bool]:
        """Return one page by id, which is the order of creation, and whether more follow."""
        return fetch_page(self._session, sa.select(Sweep), Sweep.id, page)

    def list_jobs(self, sweep_id: str) -> list[Job]:
        """Return the members that were not deleted, oldest first."""
        query = sa.select(Job).where(Job.sweep_id == sweep_id, Job.deletion_requested_at.is_(None)).order_by(Job.id)
        return list(self._session.scalars(query))

    def count_by_status(self, sweep_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return the number of members with each status, for each sweep that has members."""
        query = (
            sa.select(Job.sweep_id, Job.status, sa.func.count())
            .where(Job.sweep_id.in_(sweep_ids), Job.deletion_requested_at.is_(None))
            .group_by(Job.sweep_id, Job.status)
        )
        counts: dict[str, dict[str, int]] = {}
        for sweep_id, status, count in self._session.execute(query):
            counts.setdefault(str(sweep_id), {})[status] = count
        return counts
