"""Database sessions that behave alike on SQLite and Postgres."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    InternalError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.core.errors import InvalidRequestError, UnavailableError
from service.core.thread_slots import SECONDS, Deadline, current_deadline
from service.db.fair_lock import FairLock, FairLockTimeoutError
from service.db.json_values import decode_json
from service.db.listeners import INFO, ChangeListener
from service.db.raw import RawTransaction, raw_transaction
from service.db.visibility import restrict

BUSY_SECONDS = 4
"""How long a writer waits for another process that has locked a SQLite file; a request is then refused in time."""
_WRITE_LOCK_SECONDS = 30.0
_CANCEL_SECONDS = 5.0
"""How long Postgres may take to receive that a query is to end."""
_OPERATIONS = 1_000_000
"""Steps of SQLite between two looks at the deadline, some 10 ms. Each look makes a query wait for Python's global
lock."""
_MAX_IDLE_SECONDS = 1.0
"""A connection to Postgres that was idle for longer is pinged before use, which costs a round trip."""


class Database:
    """Sessions on a database. A `write` commits when its block ends without an error.

    On SQLite, writers share a connection, so that within the process they wait in order instead of failing with
    SQLITE_BUSY. BEGIN IMMEDIATE does the same against other processes.
    """

    before_commit: Callable[[Session], None] | None = None
    """Called with every transaction that is about to commit; its additions are committed, too."""

    def __init__(self, url: str):
        self.after_commit: list[Callable[[set[int]], None]] = []
        """Called after a commit with the numbers of the jobs whose sequence it raised; must return at once."""
        self.listeners: Sequence[ChangeListener] = ()
        """Called within the transactions of `write` that change jobs or exclude nodes."""
        self._write_lock: FairLock | None = None
        self.url = sa.make_url(url)
        self.dialect = self.url.get_backend_name()
        if self.dialect == "sqlite":
            Path(str(self.url.database)).parent.mkdir(parents=True, exist_ok=True)
            self._reader = _sqlite_engine(self.url, "BEGIN", pool_size=32, ends_at_deadline=True)
            self._writer = _sqlite_engine(self.url, "BEGIN IMMEDIATE", pool_size=1)
            self._write_lock = FairLock()
            self._locked_at = float("-inf")
            """When a writer last gave up waiting for another process that had locked the file."""
        else:
            # A deadlock of two writers or a stuck writer must end as an error that is retried, not as a hang.
            options = {"options": f"-c statement_timeout={SECONDS * 1000:.0f} -c lock_timeout=10000"}
            # LIFO: the server process of the connection used last has plans and pages cached.
            self._reader = sa.create_engine(
                self.url, pool_size=10, max_overflow=10, pool_use_lifo=True, connect_args=options, hide_parameters=True
            )
            _ping_after_idle(self._reader)
            self._writer = self._reader
        driver: Any = self._writer.dialect.dbapi
        self._driver_errors: tuple[type[Exception], ...] = (driver.OperationalError, driver.InterfaceError)
        self._data_errors: tuple[type[Exception], ...] = (driver.DataError,)
        self._internal_errors: tuple[type[Exception], ...] = (driver.InternalError,)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session whose changes are discarded. Its queries end with the deadline of the request, or its client.

        Raises:
            UnavailableError: the database did not answer in time.
            InvalidRequestError: the request takes too long.
            ClientGoneError: its client has disconnected.
        """
        deadline = current_deadline()
        if deadline is not None:
            deadline.check()
        with (
            _translate_errors(self._driver_errors, deadline=deadline),
            Session(self._reader, expire_on_commit=False) as session,
            self._interrupted_by(deadline, session),
        ):
            yield restrict(session)

    @contextmanager
    def _interrupted_by(self, deadline: Deadline | None, session: Session) -> Iterator[None]:
        """On Postgres, cancel the session's query once the deadline is over. SQLite checks the deadline by itself."""
        if deadline is None or self.dialect == "sqlite":
            yield
            return
        driver: Any = session.connection().connection.driver_connection
        try:
            with deadline.interrupted_by(partial(driver.cancel_safe, timeout=_CANCEL_SECONDS)):
                yield
        finally:
            if deadline.is_over:
                # A late cancellation would end a query of the next request.
                session.invalidate()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction.

        Raises:
            UnavailableError: the database did not answer in time; nothing was written.
            InvalidRequestError: the database has no representation of a value; nothing was written.
        """
        with (
            _translate_errors(),
            self._hold_write_lock(),
            Session(self._writer, expire_on_commit=False, info={INFO: self.listeners}) as session,
            session.begin(),
        ):
            yield restrict(session)
            if self.before_commit is not None:
                self.before_commit(session)
            changed: set[int] = session.info.get("changed_job_pks", set())
        self._notify(changed)

    @contextmanager
    def write_raw(self) -> Iterator[RawTransaction]:
        """Open a transaction of a few statements on the driver's connection; `before_commit` is not called.

        Raises:
            UnavailableError: as `write`, but if the commit was not answered, the transaction may be written.
        """
        with (
            _translate_errors(self._driver_errors, self._data_errors, self._internal_errors),
            self._hold_write_lock(),
            raw_transaction(self._writer) as transaction,
        ):
            yield transaction
        self._notify(transaction.changed_job_pks)

    def _notify(self, changed: set[int]) -> None:
        if changed:
            for callback in self.after_commit:
                callback(changed)

    @contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        """On SQLite, wait for the other writers of this process.

        When a writer has waited in vain for another process, the writers behind it fail too, instead of each waiting as
        long.
        """
        if self._write_lock is None:
            yield
            return
        requested_at = time.monotonic()
        with self._write_lock.hold(_WRITE_LOCK_SECONDS):
            if self._locked_at > requested_at:
                raise FairLockTimeoutError("database is locked by another process")
            try:
                yield
            except (sqlite3.OperationalError, OperationalError) as error:
                if getattr(getattr(error, "orig", error), "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                    self._locked_at = time.monotonic()
                raise

    def insert(self, table: Any) -> Any:
        """Return an INSERT statement that supports ON CONFLICT, which has the same syntax in both dialects."""
        from sqlalchemy.dialects import postgresql, sqlite

        return (sqlite if self.dialect == "sqlite" else postgresql).insert(table)

    def check_writable(self) -> None:
        """Write a row, which fails if the database is read-only or full.

        Raises:
            UnavailableError: the database does not answer, or takes no writes.
        """
        statement = sa.text(
            "INSERT INTO leases (name, owner, term, expires_at) VALUES ('readiness', '', 1, 0) "
            "ON CONFLICT (name) DO UPDATE SET term = leases.term + 1"
        )
        with _translate_errors(), self._hold_write_lock(), self._writer.begin() as connection:
            connection.execute(statement)

    def dispose(self) -> None:
        """Close every connection."""
        self._reader.dispose()
        self._writer.dispose()


_UNAVAILABLE_ERRORS: tuple[type[Exception], ...] = (
    OperationalError,
    InterfaceError,
    PoolTimeoutError,
    FairLockTimeoutError,
)

_READ_ONLY = "25006"
"""SQLSTATE of a write on a standby, or with `default_transaction_read_only`."""
_QUERY_CANCELED = "57014"
"""SQLSTATE of a query that was cancelled, or took longer than `statement_timeout`."""
_INTERNAL_ERRORS: tuple[type[Exception], ...] = (InternalError,)
_STORAGE_ERRORS: tuple[type[Exception], ...] = (StatementError, OverflowError)


@contextmanager
def _translate_errors(
    driver_errors: tuple[type[Exception], ...] = (),
    data_errors: tuple[type[Exception], ...] = (),
    internal_errors: tuple[type[Exception], ...] = (),
    deadline: Deadline | None = None,
) -> Iterator[None]:
    """Translate the errors of SQLAlchemy, and the given errors of the driver.

    Args:
        deadline: Its error is raised for a query that was interrupted.
    """
    try:
        yield
    except (*_UNAVAILABLE_ERRORS, *driver_errors) as error:
        if deadline is not None and _is_interrupted(error):
            raise deadline.error from error
        raise UnavailableError(f"the database does not answer: {_first_line(error)}", code="database") from error
    except (*_INTERNAL_ERRORS, *internal_errors) as error:
        if getattr(getattr(error, "orig", error), "sqlstate", None) != _READ_ONLY:
            raise
        raise UnavailableError(f"the database takes no writes: {_first_line(error)}", code="database") from error
    except (*_STORAGE_ERRORS, *data_errors) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        structlog.get_logger("database").error("a value cannot be stored", exc_info=error)
        raise InvalidRequestError("a value cannot be stored", code="value_not_storable") from error


def _is_interrupted(error: Exception) -> bool:
    """Return whether a query was ended at its deadline, or because its client left."""
    cause = getattr(error, "orig", None) or error
    is_sqlite = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
    return is_sqlite or getattr(cause, "sqlstate", None) == _QUERY_CANCELED


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _ping_after_idle(engine: sa.Engine) -> None:
    driver: Any = engine.dialect.dbapi

    @sa.event.listens_for(engine, "checkin")
    def _record_idle_since(_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _ping(connection: Any, record: Any, _proxy: Any) -> None:
        if time.monotonic() - record.info.get("idle_since", time.monotonic()) > _MAX_IDLE_SECONDS:
            try:
                engine.dialect.do_ping(connection)
            except driver.Error as error:
                raise DisconnectionError from error  # The pool opens another connection.


def _must_end() -> bool:
    """Return whether the request whose query runs in this thread is over."""
    deadline = current_deadline()
    return deadline is not None and deadline.is_over


def _sqlite_engine(url: sa.URL, begin: str, *, pool_size: int, ends_at_deadline: bool = False) -> sa.Engine:
    engine = sa.create_engine(
        url,
        poolclass=sa.QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        # Parameters hold data that users sent; tracebacks go to the log.
        hide_parameters=True,
        # Postgres checks the columns itself.
        json_deserializer=decode_json,
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # The driver's own BEGIN would come too late and without IMMEDIATE.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if ends_at_deadline:
            connection.set_progress_handler(_must_end, _OPERATIONS)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
