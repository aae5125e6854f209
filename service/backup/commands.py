"""`python -m service backup` and `restore`."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from service.backup.database_file import (
    BackupError,
    check_archive,
    check_revision,
    check_sqlite,
    copy_sqlite,
    dump_postgres,
    replace_sqlite,
    restore_postgres,
)
from service.core.settings import Settings
from service.db.engine import Database
from service.db.leader_lease import current_leader
from service.db.migrate import current
from service.jobs.repository import JobRepository
from service.jobs.states import ACTIVE
from trainyard.contract.layout import write_atomic

Print = Callable[[str], None]

_CONSEQUENCES = (
    "The next start reads the run directories of jobs that have not ended, or failed or were cancelled recently:",
    "it adopts attempts that began after the backup, and stores the points in their spools.",
    "`trainyard orphans` then lists jobs that were submitted after the backup. Changes by users since then are lost.",
)


def backup(settings: Settings, file: Path, now: datetime, report: Print) -> None:
    """Write a backup of the database, which may be in use, to a new file.

    Raises:
        BackupError: The file exists, or the backup cannot be made.
    """
    if file.exists():
        raise BackupError(f"{file} exists; name a new file")
    url = sa.make_url(settings.url)
    if url.get_backend_name() == "sqlite":
        database = _sqlite_file(url)
        if not database.exists():
            raise BackupError(f"there is no database {database}")
        copy_sqlite(database, file.absolute())
        check_sqlite(file)
    else:
        dump_postgres(url, file.absolute())
        check_archive(file)
    report(f"wrote {file} ({file.stat().st_size:,} bytes)")
    report(f"Back up {settings.runs} after it, and the key of users' secrets if there is one ({_key_file(settings)}).")


def restore(settings: Settings, file: Path | None, now: datetime, report: Print, *, dry_run: bool = False) -> None:
    """Replace the database by a backup, and have the next start adopt running jobs from the run directories.

    Args:
        file: The backup; None: the database has been restored by other means.
        dry_run: Only check, and report the planned changes.

    Raises:
        BackupError: The file is no backup of this database, or a service still uses the database.
    """
    url = sa.make_url(settings.url)
    is_sqlite = url.get_backend_name() == "sqlite"
    if file is not None:
        (check_sqlite if is_sqlite else check_archive)(file)
        _check_unused(settings, now)
    if not dry_run:
        # The marker comes first: with an unchanged database, it only costs the next start some time.
        settings.runs.mkdir(parents=True, exist_ok=True)
        write_atomic(settings.restore_marker, f"restored at {now.isoformat()}\n", mode=0o600)
    if file is not None and is_sqlite:
        database = _sqlite_file(url)
        if dry_run:
            report(f"would replace {database} by {file}")
        elif (former := replace_sqlite(database, file, now)) is not None:
            report(f"the former database is {former}; delete it when the service has run for a while")
    elif file is not None:
        report(f"{'would replace' if dry_run else 'replacing'} the content of {url} by {file}")
        if not dry_run:
            restore_postgres(url, file)
    if dry_run and file is not None:
        return
    check_revision(str(url), current(settings.url))
    _report(settings, now, report)


def _check_unused(settings: Settings, now: datetime) -> None:
    """Check that no reconciler uses the database, if it can be opened at all."""
    try:
        if current(settings.url) is None:
            return
        database = Database(settings.url)
        try:
            until = current_leader(database, now)
        finally:
            database.dispose()
    except sa.exc.SQLAlchemyError:
        return
    if until is not None:
        raise BackupError(f"a service uses the database (its lease ends at {until:%H:%M:%S} UTC); stop it first")


def _report(settings: Settings, now: datetime, report: Print) -> None:
    """Print the number of jobs in the restored database, and the consequences."""
    database = Database(settings.url)
    try:
        with database.read() as session:
            counts = JobRepository(session, now).count_by_status()
            newest = JobRepository(session, now).newest_change()
    finally:
        database.dispose()
    active = sum(count for status, count in counts.items() if status in (*ACTIVE, "queued", "paused"))
    since = "it has no jobs" if newest is None else f"the newest change is of {newest:%Y-%m-%d %H:%M:%S} UTC"
    report(f"the database has {sum(counts.values())} jobs, {active} of which have not ended; {since}")
    for line in _CONSEQUENCES:
        report(line)


def _sqlite_file(url: sa.URL) -> Path:
    if not url.database:
        raise BackupError("the database is in memory")
    return Path(url.database).absolute()


def _key_file(settings: Settings) -> Path:
    return settings.secrets_key_file or settings.state / "secrets.key"
