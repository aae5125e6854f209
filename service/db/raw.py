"""Small, frequent transactions on the driver's connection, where a Session would cost more than the SQL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    import psycopg

Statement = tuple[str, Sequence[Any]]
"""SQL with `?` for each value, and the values."""


class RawTransaction:
    """A transaction on the driver's connection. Statements raise the driver's errors."""

    def __init__(self, driver: Any, *, is_sqlite: bool):
        self._driver = driver
        self._committed = False
        self.is_sqlite = is_sqlite
        self.changed_job_pks: set[int] = set()
        """Keys of the jobs whose sequence the transaction raises."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Execute a statement and return its cursor."""
        return self._driver.execute(self._convert_placeholders(statement), tuple(values))

    def execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute a statement once for each row."""
        if rows:
            self._driver.cursor().executemany(self._convert_placeholders(statement), list(rows))

    def execute_pipelined(self, *statements: Statement, commit: bool = False) -> list[Any]:
        """Execute several statements and return their cursors.

        Postgres gets them in one round trip, because after each round trip this thread waits for the GIL.

        Args:
            commit: Whether to commit in the same round trip.
        """
        if self.is_sqlite:
            return [self.execute(*statement) for statement in statements]
        driver: psycopg.Connection[Any] = self._driver
        with driver.pipeline():
            cursors = [self.execute(*statement) for statement in statements]
            if commit:
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

    def _convert_placeholders(self, statement: str) -> str:
        return statement if self.is_sqlite else statement.replace("?", "%s")


@contextmanager
def raw_transaction(engine: sa.Engine) -> Iterator[RawTransaction]:
    """Open a transaction on a connection of the pool; an error of the driver discards the connection."""
    dbapi: Any = engine.dialect.dbapi
    connection = engine.raw_connection()
    try:
        transaction = RawTransaction(connection.driver_connection, is_sqlite=engine.dialect.name == "sqlite")
        transaction.begin()
        try:
            yield transaction
            transaction.commit()
        except BaseException:
            with suppress(dbapi.Error):
                transaction.roll_back()
            raise
    except dbapi.Error:
        connection.invalidate()  # The connection may be broken.
        raise
    finally:
        connection.close()
