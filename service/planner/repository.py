"""All SQL about questions to the scheduler."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import NotFoundError
from service.db.models import StartEstimate


class AskRepository:
    """Questions within one session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, ask: StartEstimate) -> None:
        self._session.add(ask)

    def get(self, ask_id: str) -> StartEstimate:
        """Raises NotFoundError."""
        ask = self._session.get(StartEstimate, ask_id)
        if ask is None:
            raise NotFoundError(f"there is no ask {ask_id!r}", code="ask_not_found", param="ask_id")
        return ask

    def waiting(self, limit: int) -> Sequence[StartEstimate]:
        """Those without an answer, oldest first."""
        query = (
            sa.select(StartEstimate).where(StartEstimate.answered_at.is_(None)).order_by(StartEstimate.id).limit(limit)
        )
        return self._session.scalars(query).all()

    def last_answered(self) -> datetime | None:
        """When the scheduler was last asked, by whichever service."""
        return self._session.scalar(sa.select(sa.func.max(StartEstimate.answered_at)))

    def answer(
        self,
        ask_ids: Sequence[str],
        now: datetime,
        *,
        accepted: bool | None,
        message: str,
        estimated_start: datetime | None = None,
    ) -> None:
        """The same answer to all of them."""
        row = {"answered_at": now, "accepted": accepted, "message": message, "estimated_start": estimated_start}
        self._session.execute(sa.update(StartEstimate).where(StartEstimate.id.in_(ask_ids)).values(row))

    def forget(self, before: datetime) -> None:
        """Delete what was answered before that time."""
        self._session.execute(sa.delete(StartEstimate).where(StartEstimate.answered_at < before))
