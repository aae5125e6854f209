"""Raw transactions are atomic and notify listeners; a broken connection loses at most one group."""

import pytest
import sqlalchemy as sa

from service.core.errors import UnavailableError
from service.db import engine
from service.db.engine import Database
from service.metrics.repository import CurveRepository
from tests.support.world import World


def keys(database: Database) -> int:
    with database.read() as session:
        return session.scalar(sa.text("SELECT count(*) FROM metric_keys")) or 0


def add(database: Database, name: str) -> None:
    with database.write_raw() as transaction:
        transaction.execute("INSERT INTO metric_keys (name) VALUES (?)", (name,))


def break_connections(database: Database) -> None:
    """As a restart of the server does."""
    with database.read() as session:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        session.execute(sa.text(f"{others} AND pid <> pg_backend_pid()"))


@pytest.fixture
def postgres(world: World) -> Database:
    if world.database.dialect == "sqlite":
        pytest.skip("a file has no connections to break")
    world.database.dispose()
    return world.database


def test_failed_transaction_is_rolled_back(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.database.write_raw() as transaction:  # noqa: PT012
        transaction.execute("INSERT INTO metric_keys (name) VALUES (?)", ("a",))
        raise ZeroDivisionError
    assert keys(world.database) == 0
    add(world.database, "a")
    assert keys(world.database) == 1


def test_callbacks_run_only_after_a_commit(world: World) -> None:
    calls: list[tuple[set[int], int]] = []
    world.database.after_commit.append(lambda jobs: calls.append((jobs, keys(world.database))))
    with pytest.raises(ZeroDivisionError), world.database.write_raw() as transaction:  # noqa: PT012
        transaction.changed_job_pks.add(7)
        raise ZeroDivisionError
    with world.database.write_raw() as transaction:
        transaction.execute("INSERT INTO metric_keys (name) VALUES (?)", ("a",))
        transaction.changed_job_pks.add(7)
    assert calls == [({7}, 1)]


def test_error_in_the_committing_round_trip_rolls_back(postgres: Database) -> None:
    add(postgres, "a")
    insert = "INSERT INTO metric_keys (name) VALUES (?)"
    with pytest.raises(Exception, match="duplicate key"), postgres.write_raw() as transaction:
        transaction.execute_pipelined((insert, ("b",)), (insert, ("a",)), commit=True)
    assert keys(postgres) == 1
    with postgres.write_raw() as transaction:
        transaction.execute_pipelined((insert, ("b",)), (insert, ("c",)), commit=True)
    assert keys(postgres) == 3


def test_broken_connection_in_use_raises_unavailable_once(postgres: Database) -> None:
    with pytest.raises(UnavailableError), postgres.write_raw() as transaction:  # noqa: PT012
        transaction.execute("INSERT INTO metric_keys (name) VALUES (?)", ("a",))
        break_connections(postgres)
        transaction.execute("INSERT INTO metric_keys (name) VALUES (?)", ("b",))
    assert keys(postgres) == 0
    add(postgres, "a")
    assert keys(postgres) == 1


def test_connection_broken_while_idle_is_replaced(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    add(postgres, "a")
    other = Database(postgres.url.render_as_string(hide_password=False))
    break_connections(other)
    other.dispose()
    monkeypatch.setattr(engine, "_MAX_IDLE_SECONDS", -1.0)
    add(postgres, "b")
    assert keys(postgres) == 2


def test_broken_driver_cursor_raises_unavailable_once(postgres: Database) -> None:
    with pytest.raises(UnavailableError), postgres.read() as session:  # noqa: PT012
        curves = CurveRepository(session, postgres)
        assert curves.pending_points(1, 0, 1) == []
        break_connections(postgres)
        curves.pending_points(1, 0, 1)
    with postgres.read() as session:
        assert CurveRepository(session, postgres).pending_points(1, 0, 1) == []
