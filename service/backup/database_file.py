"""Backups as files: a copy of the SQLite file, or an archive of `pg_dump`."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from service.core.errors import ServiceError
from service.db.migrate import is_known

_ARCHIVE_MAGIC = b"PGDMP"


class BackupError(ServiceError):
    """The backup cannot be made, or cannot be restored."""

    code = "backup"


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database that may be in use; the copy is a consistent snapshot.

    Raises:
        BackupError: The database cannot be read, or the copy not written.
    """
    uri = f"{source.as_uri()}?mode=ro"
    try:
        with (
            _new_file(target) as temporary,
            closing(sqlite3.connect(uri, uri=True)) as reader,
            closing(sqlite3.connect(temporary)) as writer,
        ):
            reader.backup(writer)
            # A copy in WAL mode could not be read from a read-only folder.
            writer.execute("PRAGMA journal_mode=DELETE")
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"cannot copy {source} to {target}: {error}") from error


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Yield an empty file of mode 0600, which becomes the target when the block ends without an error.

    It is in a private folder: others who can write beside the target can neither open it nor put their own file there.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        temporary = Path(folder) / "unfinished"
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    _sync(target.parent)


def check_sqlite(file: Path) -> None:
    """Check that a file is an undamaged SQLite database with a schema that this release knows.

    Raises:
        BackupError: It is not.
    """
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error as error:
        raise BackupError(f"{file} is not a backup of the service's database: {error}") from error
    if result != "ok":
        raise BackupError(f"{file} is damaged: {result}")
    check_revision(str(file), rows[0][0] if rows else None)


def check_revision(name: str, revision: str | None) -> None:
    """Check that this release can use, or upgrade, a schema. Raises BackupError: it cannot."""
    if not is_known(revision):
        raise BackupError(
            f"{name} has the schema {revision or 'of no release'}, which this release does not know; install the "
            "release that made it"
        )


def replace_sqlite(database: Path, backup: Path, now: datetime) -> Path | None:
    """Replace the SQLite file of a stopped service by a backup; return where the former file lies, if there was any."""
    copy = database.with_name(f".{database.name}.restoring")
    copy_sqlite(backup.absolute(), copy)
    former = None
    if database.exists():
        former = database.with_name(f"{database.name}.before-restore-{now:%Y%m%dT%H%M%S}")
        # The journal belongs to the former file: SQLite would damage another file with it.
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{database}{suffix}", f"{former}{suffix}")
    os.replace(copy, database)
    _sync(database.parent)
    return former


def dump_postgres(url: sa.URL, target: Path) -> None:
    """Write an archive of `pg_dump`. Raises BackupError: `pg_dump` is missing or fails."""
    try:
        with _new_file(target) as temporary:
            _run("pg_dump", ["--format=custom", f"--file={temporary}"], url)
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error}") from error


def check_archive(file: Path) -> None:
    """Check that a file is an archive of `pg_dump`. Raises BackupError: it is not."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_ARCHIVE_MAGIC))
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from error
    if magic != _ARCHIVE_MAGIC:
        raise BackupError(f"{file} is not an archive of pg_dump --format=custom")


def restore_postgres(url: sa.URL, file: Path) -> None:
    """Replace the content of the database by an archive, in one transaction.

    Raises:
        BackupError: `pg_restore` is missing or fails; the database is unchanged then.
    """
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction", str(file.absolute())]
    _run("pg_restore", options, url)


def _run(program: str, options: Sequence[str], url: sa.URL) -> None:
    """Run a program of Postgres; the password is passed in the environment, not as an argument."""
    path = shutil.which(program)
    if path is None:
        raise BackupError(
            f"{program} is not installed here; use the database's own tools, and `restore --database-is-restored`"
        )
    target = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = dict(os.environ)
    if url.password:
        environment["PGPASSWORD"] = str(url.password)
    done = subprocess.run(
        [path, f"--dbname={target}", "--no-password", *options], env=environment, capture_output=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise BackupError(f"{program} failed: {lines[-1] if lines else f'exit status {done.returncode}'}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
