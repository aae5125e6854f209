"""Keyset paging, the same for every list of the API."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session


@dataclass(frozen=True)
class PageRequest:
    """One page of a list: at most `limit` rows that follow the row `after`."""

    limit: int = 20
    after: str | None = None
    descending: bool = True


def fetch_page(
    session: Session,
    query: sa.Select[Any],
    key: InstrumentedAttribute[Any],
    page: PageRequest,
) -> tuple[list[Any], bool]:
    """Return the rows of one page, ordered by the unique column `key`, and whether more rows follow."""
    if page.after is not None:
        query = query.where(key < page.after if page.descending else key > page.after)
    rows = list(session.scalars(query.order_by(key.desc() if page.descending else key.asc()).limit(page.limit + 1)))
    return rows[: page.limit], len(rows) > page.limit
