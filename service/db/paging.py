"""Keyset paging, the same for every list of the API."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session


@dataclass(frozen=True)
class PageRequest:
    """One page of a list: at most `limit` rows that follow the row with the id `after`."""

    limit: int = 20
    after: str | None = None
    descending: bool = True


def fetch_page(
    session: Session, query: sa.Select[Any], key: InstrumentedAttribute[Any], page: PageRequest, *, after: Any = None
) -> tuple[list[Any], bool]:
    """Return the rows of a page, ordered by a unique column, and whether more rows follow.

    Args:
        key: The unique column.
        after: The key of the row `page.after`, where `key` is not the id.
    """
    start = page.after if after is None else after
    if start is not None:
        query = query.where(key < start if page.descending else key > start)
    rows = list(session.scalars(query.order_by(key.desc() if page.descending else key.asc()).limit(page.limit + 1)))
    return rows[: page.limit], len(rows) > page.limit
