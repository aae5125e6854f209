"""The base of classes with the SQL of a feature."""

from typing import TypeVar

from sqlalchemy.orm import Session

from service.core.errors import NotFoundError

R = TypeVar("R")


class Repository:
    """Queries and changes within a session."""

    def __init__(self, session: Session):
        self._session = session


def require_row(row: R | None, kind: str, id_: str) -> R:
    """Return the row with this id. Raises NotFoundError: there is none."""
    if row is None:
        raise NotFoundError(f"there is no {kind} {id_!r}", code=f"{kind}_not_found", param=f"{kind}_id")
    return row
