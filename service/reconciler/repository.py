"""SQL of the reconciler's own: the newest entries of the job histories."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import Event

_WINDOW = 1000


def newest_event(session: Session) -> tuple[int, int]:
    """Return the newest event's number, and how many events exist among the last 1000 numbers.

    The count changes when an event with an earlier number is committed later.
    """
    last = session.scalar(sa.select(sa.func.max(Event.pk))) or 0
    recent = sa.select(sa.func.count()).select_from(Event).where(Event.pk > last - _WINDOW)
    return last, session.scalar(recent) or 0
