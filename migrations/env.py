"""Runs migrations on the database whose URL the caller gives."""

from typing import Any, Literal

import sqlalchemy as sa
from alembic import context

from service.core.settings import Settings
from service.db.models import Base
from service.db.types import UtcTime


def _url() -> str:
    given = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True).get("url")
    return str(given or Settings().url)


def _render(kind: str, item: Any, autogen: Any) -> str | Literal[False]:
    """Migrations stand alone: they name plain column types, not ours."""
    if kind == "type" and isinstance(item, UtcTime):
        return "sa.BigInteger()"
    if kind == "type" and isinstance(item, sa.JSON):
        autogen.imports.add("from sqlalchemy.dialects import postgresql")
        return "sa.JSON().with_variant(postgresql.JSONB(), 'postgresql')"
    return False


def _make_transactional(engine: sa.Engine) -> None:
    """SQLite could take a whole migration back, but its driver begins no transaction before a CREATE TABLE."""

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def run() -> None:
    engine = sa.create_engine(_url(), poolclass=sa.NullPool)
    if engine.dialect.name == "sqlite":
        _make_transactional(engine)
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            # Two services that start at once must not migrate at once; a busy table must not block for ever.
            connection.execute(sa.text("SELECT pg_advisory_lock(7470184)"))
            connection.execute(sa.text("SET lock_timeout = '30s'"))
            connection.commit()
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=connection.dialect.name == "sqlite",
            compare_type=False,
            render_item=_render,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
