"""The reconciler hears of what other processes write: replicas of the API cannot call it."""

from collections.abc import Callable
from typing import ClassVar

from service.db.engine import Database
from service.reconciler.repository import NewsRepository


class Elsewhere:
    """Looks at the newest lines of the jobs' histories; whatever a person or a worker asks for leaves one."""

    SECONDS: ClassVar[float] = 1.0
    """Between two looks."""

    def __init__(self, database: Database, hint: Callable[[], None]):
        self._database = database
        self._hint = hint
        self._seen: tuple[int, int] | None = None

    def run_once(self) -> bool:
        """Hint when there is something new, whoever wrote it; False: there is never more to do at once."""
        with self._database.read() as session:
            newest = NewsRepository(session).newest()
        if newest != self._seen:
            self._seen = newest
            self._hint()
        return False
