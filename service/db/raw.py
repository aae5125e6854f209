"""Transactions on the connection of the driver, for many small ones, where a Session would cost more than the SQL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    import psycopg

Statement = tuple[str, Sequence[Any]]
"""SQL with `?` for each value, and the values."""


class RawTransaction:
    """One transaction. Statements raise the errors of the driver."""

    def __init__(self, driver: Any, *, is_sqlite: bool):
        self._driver = driver
        self._committed = False
        self.is_sqlite = is_sqlite
        self.changed_job_pks: set[int] = set()
        """Keys of the jobs whose sequence the transaction raises."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement; return its cursor."""
        return self._driver.execute(self._spelled(statement), tuple(values))

    def many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once for each row."""
        if rows:
            self._driver.cursor().executemany(self._spelled(statement), list(rows))

    def together(self, *statements: Statement, last: bool = False) -> list[Any]:
        """Run several statements; return their cursors.

        Postgres gets them in one round trip, because after each one this thread would have to wait for the GIL.

        Args:
            last: Whether to commit in the same round trip.
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
    """Open a transaction on a connection of the pool; an error of the driver discards the connection."""
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
        pooled.invalidate()  # the connection may be broken
        raise
    finally:
        pooled.close()
