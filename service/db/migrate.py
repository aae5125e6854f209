"""Migrate a database to the schema of this release, and reject a newer schema."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

import migrations
from service.core.errors import UnavailableError


def alembic_config(url: str) -> Config:
    """Return Alembic's configuration for a database, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(migrations.__path__)))))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Apply the missing migrations.

    Raises:
        UnavailableError: the schema was written by a newer release, or cannot be reached.
    """
    try:
        command.upgrade(alembic_config(url), revision)
    except CommandError as error:
        raise UnavailableError(
            f"the database's schema is not one that this release knows ({error}); install the release that made it",
            code="schema_newer",
        ) from error
    except sa.exc.OperationalError as error:
        raise UnavailableError(
            f"cannot open the database: {str(error.orig).splitlines()[0]}", code="database"
        ) from error


def current(url: str) -> str | None:
    """Return the revision of a database's schema; None without a schema."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def is_known(revision: str | None) -> bool:
    """Return whether a schema belongs to this release or to an earlier release."""
    script = ScriptDirectory.from_config(alembic_config("sqlite://"))
    return revision in {known.revision for known in script.walk_revisions()}


def head() -> str | None:
    """Return the newest revision of this release."""
    return ScriptDirectory.from_config(alembic_config("sqlite://")).get_current_head()
