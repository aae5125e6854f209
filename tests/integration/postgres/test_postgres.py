"""The PostgreSQL that the other tests rely on."""

import pytest
import sqlalchemy as sa

from tests.support.postgres import PostgresServer


def tables(url: str) -> list[str]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return sa.inspect(connection).get_table_names()


def prepare(url: str) -> None:
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("CREATE TABLE once (id int)"))


def test_every_database_is_new_and_empty(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    prepare(first)
    assert (tables(first), tables(second)) == (["once"], [])


def test_copied_database_has_the_prepared_content(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.copy_of(prepare), postgres_server.copy_of(prepare)
    assert first != second
    assert tables(second) == ["once"]
    postgres_server.drop_database(first)
    with pytest.raises(sa.exc.OperationalError, match="does not exist"):
        tables(first)
