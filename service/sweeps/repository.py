"""All SQL about sweeps."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import NotFoundError
from service.db.models import Job, Sweep


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

    def page(self, *, after: str | None, limit: int, descending: bool) -> tuple[list[Sweep], bool]:
        """One page by time of creation, and whether there is more."""
        query = sa.select(Sweep)
        if after is not None:
            query = query.where(Sweep.id < after if descending else Sweep.id > after)
        order = Sweep.id.desc() if descending else Sweep.id.asc()
        rows = list(self._session.scalars(query.order_by(order).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    def jobs(self, sweep_id: str) -> list[Job]:
        """Its members that are there, oldest first."""
        query = sa.select(Job).where(Job.sweep_id == sweep_id, Job.deletion_requested_at.is_(None)).order_by(Job.id)
        return list(self._session.scalars(query))

    def counts(self, sweep_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """Members by status, for each sweep that has any."""
        query = (
            sa.select(Job.sweep_id, Job.status, sa.func.count())
            .where(Job.sweep_id.in_(sweep_ids), Job.deletion_requested_at.is_(None))
            .group_by(Job.sweep_id, Job.status)
        )
        found: dict[str, dict[str, int]] = {}
        for sweep_id, status, count in self._session.execute(query):
            found.setdefault(str(sweep_id), {})[status] = count
        return found
