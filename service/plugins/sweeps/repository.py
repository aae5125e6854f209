"""All SQL about sweeps."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.db.models import Attempt, Job, Sweep, SweepTrial
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository, require_row


class SweepRepository(Repository):
    """Sweeps within a session."""

    def get(self, sweep_id: str) -> Sweep:
        """Raises NotFoundError."""
        return require_row(self._session.get(Sweep, sweep_id), "sweep", sweep_id)

    def get_for_update(self, sweep_id: str) -> Sweep:
        """Return the current row and lock it: other writers of the sweep wait until this transaction ends."""
        query = sa.select(Sweep).where(Sweep.id == sweep_id).with_for_update()
        return self._session.scalars(query.execution_options(populate_existing=True)).one()

    def running_searches(self) -> list[str]:
        """Return the ids of the searches that have not ended, oldest first."""
        return list(self._session.scalars(sa.select(Sweep.id).where(Sweep.state == "running").order_by(Sweep.id)))

    def add_trial(self, trial: SweepTrial) -> None:
        self._session.add(trial)
        self._session.flush()

    def list_trials(self, sweep_id: str) -> list[SweepTrial]:
        """Return the trials of a search, in the order of their proposal."""
        query = sa.select(SweepTrial).where(SweepTrial.sweep_id == sweep_id).order_by(SweepTrial.number)
        return list(self._session.scalars(query))

    def count_trials(self, sweep_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of trials of each search that has any."""
        query = sa.select(SweepTrial.sweep_id, sa.func.count()).where(SweepTrial.sweep_id.in_(sweep_ids))
        return {key: count for key, count in self._session.execute(query.group_by(SweepTrial.sweep_id))}

    def gpu_seconds(self, sweep_id: str, now: datetime) -> float:
        """Return the GPU time of all members: allocated GPUs times the time since each attempt was claimed."""
        query = (
            sa.select(Job.gpus, Attempt.claimed_at, Attempt.ended_at)
            .join(Attempt, Attempt.job_pk == Job.pk)
            .where(Job.sweep_id == sweep_id, Attempt.claimed_at.is_not(None))
        )
        rows = self._session.execute(query)
        return sum(gpus * ((ended or now) - claimed).total_seconds() for gpus, claimed, ended in rows if claimed)

    def list_page(self, page: PageRequest) -> tuple[list[Sweep], bool]:
        """Return a page by id, which is the order of creation, and whether more follow."""
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
