"""Migrations: up, down and up again; they match the models, and a newer database is refused."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from sqlalchemy.orm import Session

from service.core.errors import UnavailableError
from service.db.migrate import alembic_config, head, upgrade
from service.db.models import DownsampledPoint, Job, JobValue, MetricKey, Point, ValueKey
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


def tables(url: str) -> set[str]:
    engine = sa.create_engine(url)
    names = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return names


def test_upgrade_downgrade_and_upgrade(empty_url: str) -> None:
    upgrade(empty_url)
    first = tables(empty_url)
    assert {"jobs", "attempts", "points", "events"} <= first
    command.downgrade(alembic_config(empty_url), "base")
    assert tables(empty_url) == {"alembic_version"}
    upgrade(empty_url)
    assert tables(empty_url) == first
    upgrade(empty_url)


def test_models_match_migrations(empty_url: str) -> None:
    upgrade(empty_url)
    command.check(alembic_config(empty_url))


@pytest.mark.fault_scenario(29)
def test_newer_schema_is_rejected(empty_url: str) -> None:
    upgrade(empty_url)
    engine = sa.create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(UnavailableError, match="install the release that made it"):
        upgrade(empty_url)
    assert head() is not None


def test_points_survive_migration_0011_in_both_directions(empty_url: str) -> None:
    config = alembic_config(empty_url)
    command.upgrade(config, "0010")
    engine = sa.create_engine(empty_url)
    with Session(engine) as session, session.begin():
        now = datetime(2026, 1, 1, tzinfo=UTC)
        given = {"spec": {}, "labels": {}, "latest": {}, "status": "queued", "status_message": "", "desired": "run"}
        # Through the table: the class would also set columns that later migrations add.
        row = {"id": "job_a", "name": "a", "created_by": "a", "created_at": now, "updated_at": now, **given}
        session.execute(sa.insert(Job.__table__).values(row))  # type: ignore[arg-type]
        session.add(MetricKey(name="loss"))
        session.flush()
        point = {"job_pk": 1, "key_pk": 1, "step": 7, "execution": 2, "value": 0.5, "special": 0, "time": now}
        session.execute(sa.insert(Point.__table__).values({**point, "sequence": 9}))  # type: ignore[arg-type]
        session.add(DownsampledPoint(job_pk=1, key_pk=1, level=3, step=7, execution=2, value=0.5, special=0, time=now))
    before = _points(engine)
    command.upgrade(config, "0011")
    assert not [key for table in ("points", "downsampled_points") for key in sa.inspect(engine).get_foreign_keys(table)]
    assert _points(engine) == before
    command.downgrade(config, "0010")
    engine.dispose()
    assert len(sa.inspect(engine).get_foreign_keys("points")) == 2
    assert _points(engine) == before
    engine.dispose()


def test_migration_0030_removes_values_of_fields_that_the_task_ignores(empty_url: str) -> None:
    config = alembic_config(empty_url)
    command.upgrade(config, "0029")
    engine = sa.create_engine(empty_url)
    names = ("task", "gpus", "optimizer.lr", "health.on_nan", "health.heartbeat")
    with engine.begin() as connection:
        connection.execute(
            sa.insert(ValueKey), [{"pk": pk, "kind": "spec", "name": name} for pk, name in enumerate(names)]
        )
        now = datetime(2026, 1, 1, tzinfo=UTC)
        given = {"spec": {}, "labels": {}, "latest": {}, "status": "queued", "status_message": "", "desired": "run"}
        for job, task in enumerate(("script", "causal_lm")):
            row = {"pk": job, "id": f"job_{job}", "name": task, "created_by": "a", "created_at": now, "updated_at": now}
            connection.execute(sa.insert(Job.__table__).values({**row, **given}))  # type: ignore[arg-type]
            values = [{"job_pk": job, "key_pk": pk, "text": task} for pk in range(len(names))]
            connection.execute(sa.insert(JobValue), values)
    command.upgrade(config, "0030")
    with engine.connect() as connection:
        left = connection.execute(sa.select(JobValue.job_pk, JobValue.key_pk)).all()
    engine.dispose()
    assert {names[key] for job, key in left if job == 0} == {"task", "gpus", "health.heartbeat"}
    assert {names[key] for job, key in left if job == 1} == set(names)


def test_messages_of_unfinished_jobs_become_conditions(empty_url: str) -> None:
    config = alembic_config(empty_url)
    command.upgrade(config, "0033")
    engine = sa.create_engine(empty_url)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    messages = {
        "silent": "Running, but the worker has sent nothing since 2026-01-01 00:00:00 UTC. It trains on.",
        "suspended": "Suspended in Slurm by an operator or by gang scheduling.",
        None: "Training on node1.",
    }
    names = ("condition", "condition_data")
    columns = [column for column in Job.__table__.columns if column.name not in names]
    old = sa.table("jobs", *(sa.column(column.name, column.type) for column in columns))
    given = {"spec": {}, "labels": {}, "latest": {}, "name": "n", "desired": "run", "created_by": "a"}
    given |= {"created_at": now, "updated_at": now, "attempts": 0, "next_execution": 1, "sequence": 0}
    given |= {"retries_used": 0, "continuations_without_progress": 0}
    rows = [("running", text) for text in messages.values()] + [("failed", messages["silent"])]
    with engine.begin() as connection:
        for pk, (status, text) in enumerate(rows):
            row = {"pk": pk, "id": f"job_{pk}", "status": status, "status_message": text}
            connection.execute(sa.insert(old).values({**row, **given}))
    command.upgrade(config, "0034")
    with engine.connect() as connection:
        stored = connection.execute(sa.select(Job.condition).order_by(Job.pk)).scalars().all()
    engine.dispose()
    assert stored == [*messages, None]


def _points(engine: sa.Engine) -> list[tuple[Any, ...]]:
    """Return the rows without the columns that later migrations add."""
    tables = [
        [column for column in table.__table__.columns if column.name != "position"]
        for table in (Point, DownsampledPoint)
    ]
    with Session(engine) as session:
        return [tuple(row) for columns in tables for row in session.execute(sa.select(*columns))]
