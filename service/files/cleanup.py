"""Removes abandoned uploads, and contents of data files that nothing refers to."""

from datetime import datetime, timedelta
from pathlib import Path

import structlog

from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.files import store
from service.files.repository import FileRepository
from trainyard.contract.data_files import partial_file

log = structlog.get_logger("maintenance")


def remove_unused(database: Database, lease: LeaderLease, runs: Path, retention: timedelta, now: datetime) -> None:
    """Remove uploads that have not received a part for the retention, and contents that nothing has used for as long.

    A content that a request uses is as good as new: its age starts again.
    """
    with database.read() as session:
        expired = [row.id for row in FileRepository(session).old_uploads(now - retention)]
    for upload_id in expired:
        partial_file(runs, upload_id).unlink(missing_ok=True)
    if expired:
        with lease.write(is_change=False) as session:
            FileRepository(session).delete_uploads(expired)
        log.info("removed abandoned uploads", uploads=len(expired))
    before = (now - retention).timestamp()
    if not (old := store.old_files(runs, before)):
        return
    with database.read() as session:
        files = FileRepository(session)
        retained = {partial_file(runs, upload_id) for upload_id in files.upload_ids()}
        used = files.used_digests()
    # Listed again: a content that was requested since then is no longer old.
    again = set(store.old_files(runs, before))
    unused = [path for path in old if path in again - retained and store.digest_of(path) not in used]
    for path in unused:
        path.unlink(missing_ok=True)
    if unused:
        log.info("removed data files that nothing refers to", files=len(unused))
