"""Transactions on the driver's own connection: where there are many small ones, a Session costs more than they."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    import psycopg

Statement = tuple[str, Sequence[Any]]
"""With question marks for its values."""


class RawTransaction:
    """One transaction. What is executed raises the driver's own errors."""

    def __init__(self, driver: Any, *, is_sqlite: bool):
        self._driver = driver
        self._committed = False
        self.is_sqlite = is_sqlite
        self.changed_job_pks: set[int] = set()
        """Jobs whose sequence it raises."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The cursor of one statement."""
        return self._driver.execute(self._spelled(statement), tuple(values))

    def many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """The same statement for each row."""
        if rows:
            self._driver.cursor().executemany(self._spelled(statement), list(rows))

    def together(self, *statements: Statement, last: bool = False) -> list[Any]:
        """The cursors of several statements, which Postgres is sent in one trip: after each, this thread would wait
        for Python's lock among requests.

        Args:
            last: commit with them.
        """
        if self.is_sqlite:
            return [self.run(*statement) for statement in statements]
        driver: psycopg.Connection[Any] = self._driver
        with driver.pipeline():
            cursors = [self.run(*statement) for statement in statements]
            if last:
                driver.commit()
                self._committed = True
        return cursors

    def begin(self) -> None:
        if self.is_sqlite:
            self._driver.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if not self._committed:
            self._driver.commit()

    def roll_back(self) -> None:
        self._driver.rollback()

    def _spelled(self, statement: str) -> str:
        return statement if self.is_sqlite else statement.replace("?", "%s")


@contextmanager
def raw_transaction(engine: sa.Engine) -> Iterator[RawTransaction]:
    """A transaction on a connection of the engine's pool."""
    dbapi: Any = engine.dialect.dbapi
    pooled = engine.raw_connection()
    try:
        transaction = RawTransaction(pooled.driver_connection, is_sqlite=engine.dialect.name == "sqlite")
        transaction.begin()
        try:
            yield transaction
            transaction.commit()
        except BaseException:
            with suppress(dbapi.Error):
                transaction.roll_back()
            raise
    except dbapi.Error:
        pooled.invalidate()  # it may be what is wrong
        raise
    finally:
        pooled.close()
