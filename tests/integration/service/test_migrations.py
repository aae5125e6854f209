"""Up, down, up again; models and migrations agree; a newer database is refused."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from service.db.migrate import alembic_config, head, upgrade
from service.errors import UnavailableError
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


def tables(url: str) -> set[str]:
    engine = sa.create_engine(url)
    found = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return found


def test_up_down_and_up_again(empty_url: str) -> None:
    upgrade(empty_url)
    first = tables(empty_url)
    assert {"jobs", "attempts", "points", "events"} <= first
    command.downgrade(alembic_config(empty_url), "base")
    assert tables(empty_url) == {"alembic_version"}
    upgrade(empty_url)
    assert tables(empty_url) == first
    upgrade(empty_url)


def test_models_and_migrations_agree(empty_url: str) -> None:
    upgrade(empty_url)
    command.check(alembic_config(empty_url))


def test_a_database_of_a_newer_release_is_refused(empty_url: str) -> None:
    upgrade(empty_url)
    engine = sa.create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(UnavailableError, match="install the release that made it"):
        upgrade(empty_url)
    assert head() is not None
