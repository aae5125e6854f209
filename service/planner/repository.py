"""All SQL about questions to the scheduler."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import NotFoundError
from service.db.ask_models import Ask


class AskRepository:
    """Questions within one session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, ask: Ask) -> None:
        self._session.add(ask)

    def get(self, ask_id: str) -> Ask:
        """Raises NotFoundError."""
        ask = self._session.get(Ask, ask_id)
        if ask is None:
            raise NotFoundError(f"there is no ask {ask_id!r}", code="ask_not_found", param="ask_id")
        return ask

    def waiting(self, limit: int) -> Sequence[Ask]:
        """Those without an answer, oldest first."""
        query = sa.select(Ask).where(Ask.answered_at.is_(None)).order_by(Ask.id).limit(limit)
        return self._session.scalars(query).all()

    def last_answered(self) -> datetime | None:
        """When the scheduler was last asked, by whichever service."""
        return self._session.scalar(sa.select(sa.func.max(Ask.answered_at)))

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
        self._session.execute(sa.update(Ask).where(Ask.id.in_(ask_ids)).values(row))

    def forget(self, before: datetime) -> None:
        """Delete what was answered before that time."""
        self._session.execute(sa.delete(Ask).where(Ask.answered_at < before))
