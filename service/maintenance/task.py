"""The maintenance task, run by the leader only: removes deleted data, measures disk use and warns of low disk space."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from service.audit.repository import AuditRepository
from service.core.clock import Clock
from service.core.failpoints import Failpoint, no_failpoint
from service.core.settings import Settings
from service.core.untrusted_files import UntrustedFiles, files_of_job
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.files.repository import FileRepository
from service.files.store import remove_unused
from service.jobs.repository import JobRepository
from service.maintenance import disk
from service.maintenance.repository import MaintenanceRepository
from service.run_files import trash
from service.run_files.files import RunFiles
from trainyard.contract.data_files import data_file, partial_file
from trainyard.contract.layout import RunLayout
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.user_code import code_archive

log = structlog.get_logger("maintenance")

RUN_DIR_MISSING = "run_directory_missing"
SECONDS = 30.0
"""Pause between two runs."""
_MEASURE_INTERVAL = timedelta(seconds=60)
_MEASURE_BATCH = 200
_MEASURE_SECONDS = 10.0
_ORPHAN_SECONDS = 3600.0
"""Age at which a run directory without a job is an orphan; a request that makes a run directory takes less."""
_WARNING_INTERVAL = timedelta(hours=1)
_CODE_CHECK_INTERVAL = timedelta(hours=6)
_PURGE_BATCH = 5000
"""Audit entries deleted in a transaction."""


@dataclass
class MaintenanceTask:
    """Each `run_once` continues the work that an interrupted run left."""

    database: Database
    lease: LeaderLease
    settings: Settings
    clock: Clock
    run_files: RunFiles
    flush_audit: Callable[[], object]
    """Writes the pending counts of refused requests into the audit log."""
    failpoint: Failpoint = no_failpoint
    """The failpoints at which a test can end the process."""
    delete_old: Sequence[Callable[[Database, Settings, datetime], None]] = ()
    """Each deletes rows of a plugin that exceed their retention at a time."""
    _cleaned_up: bool = field(default=False)
    _code_checked_at: datetime | None = field(default=None)

    def run_once(self) -> bool:
        """Run all parts once. Return False, because nothing is left that should be done at once.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database is unavailable.
        """
        if not self.lease.is_leader:
            return False
        self._delete_jobs()
        self._remove_checkpoints()
        if not self._cleaned_up:
            self._clean_up()
            self._cleaned_up = True
        self._remove_unused_code()
        self._remove_unused_files()
        self._measure()
        self._warn_of_low_disk()
        self._warn_of_missing_folders()
        self.flush_audit()
        self._purge_records()
        return False

    def _run(self, job_id: str) -> RunLayout:
        return RunLayout(self.settings.runs / job_id)

    def _clean_up(self) -> None:
        """Finish the removals of an earlier service, and remove the links of forks that it never accepted."""
        runs = self.settings.runs
        trash.empty_trash(runs)
        with self.database.read() as session:
            job_ids = MaintenanceRepository(session).job_ids()
        for name in disk.orphaned_forks(runs, job_ids, time.time() - _ORPHAN_SECONDS):
            log.info("removing a fork that was never accepted", job=name)
            try:
                uid = (runs / name).lstat().st_uid
                self.run_files.remove_run(None if uid == os.geteuid() else uid, name)
            except OSError as error:
                log.warning("cannot remove a fork yet", job=name, error=str(error))

    def _remove_unused_code(self) -> None:
        """Remove uploaded code that no job refers to and that was not requested recently."""
        now, runs = self.clock(), self.settings.runs
        if self._code_checked_at is not None and now - self._code_checked_at < _CODE_CHECK_INTERVAL:
            return
        self._code_checked_at = now
        before = now - timedelta(days=self.settings.code_retention_days)
        folder = code_archive(runs, "").parent
        if count := remove_unused(folder, before.timestamp(), partial(self._used_code, runs)):
            log.info("removed uploaded code that no job refers to", archives=count)

    def _used_code(self, runs: Path) -> set[Path]:
        with self.database.read() as session:
            return {code_archive(runs, digest) for digest in MaintenanceRepository(session).code_digests()}

    def _remove_unused_files(self) -> None:
        """Remove uploads that have not received a part for the retention, and contents that nothing has used for as
        long."""
        runs = self.settings.runs
        before = self.clock() - timedelta(hours=self.settings.upload_retention_hours)
        with self.database.read() as session:
            expired = [row.id for row in FileRepository(session).old_uploads(before)]
        for upload_id in expired:
            partial_file(runs, upload_id).unlink(missing_ok=True)
        if expired:
            with self.lease.write(is_change=False) as session:
                FileRepository(session).delete_uploads(expired)
            log.info("removed abandoned uploads", uploads=len(expired))
        folder = data_file(runs, "").parent
        if count := remove_unused(folder, before.timestamp(), partial(self._used_files, runs)):
            log.info("removed data files that nothing refers to", files=count)

    def _used_files(self, runs: Path) -> set[Path]:
        with self.database.read() as session:
            files = FileRepository(session)
            contents = {data_file(runs, digest) for digest in files.used_digests()}
            return contents | {partial_file(runs, upload_id) for upload_id in files.upload_ids()}

    def _delete_jobs(self) -> None:
        with self.database.read() as session:
            deleted = [(job.pk, job.id, job.unix_uid) for job in MaintenanceRepository(session).jobs_to_delete()]
        for pk, job_id, uid in deleted:
            self.failpoint("delete.before-files")
            try:
                if not self.run_files.remove_run(uid, job_id):
                    continue
            except OSError as error:
                log.warning("cannot remove a run directory yet", job=job_id, error=str(error))
                continue
            self.failpoint("delete.after-files")
            more = True
            while more:
                with self.lease.write(is_change=False) as session:
                    more = MaintenanceRepository(session).delete_batch(pk)
            with self.lease.write(is_change=False) as session:
                MaintenanceRepository(session).delete_job(pk)
            log.info("deleted", job=job_id)

    def _remove_checkpoints(self) -> None:
        with self.database.read() as session:
            removals = MaintenanceRepository(session).checkpoints_to_remove()
        for checkpoint_id, job_id, uid, step in removals:
            with self.database.read() as session:
                if not MaintenanceRepository(session).is_to_be_removed(checkpoint_id):
                    continue
            try:
                self.run_files.remove_checkpoint(uid, job_id, step, checkpoint_id)
            except OSError as error:
                log.warning("cannot remove a checkpoint yet", job=job_id, step=step, error=str(error))
                continue
            self.failpoint("remove.after-files")
            with self.lease.write(is_change=False) as session:
                MaintenanceRepository(session).record_removal(checkpoint_id)

    def _measure(self) -> None:
        before = self.clock() - _MEASURE_INTERVAL
        with self.database.read() as session:
            due = MaintenanceRepository(session).jobs_to_measure(before, _MEASURE_BATCH)
        until = time.monotonic() + _MEASURE_SECONDS
        sizes = []
        for pk, job_id, uid in due:
            files = files_of_job(self.settings, uid)
            self._record_missing_checkpoints(pk, files, self._run(job_id))
            sizes.append((pk, disk.used_bytes(files, self._run(job_id))))
            if time.monotonic() > until:
                break
        if sizes:
            now = self.clock()
            with self.lease.write(is_change=False) as session:
                for pk, size in sizes:
                    MaintenanceRepository(session).record_size(pk, size, now)

    def _record_missing_checkpoints(self, pk: int, files: UntrustedFiles, run: RunLayout) -> None:
        """Mark checkpoints as deleted whose folders no longer exist."""
        with self.database.read() as session:
            steps = MaintenanceRepository(session).checkpoint_steps(pk)
        if steps and (missing := disk.missing(files, run, steps)):
            with self.lease.write(is_change=False) as session:
                MaintenanceRepository(session).record_missing_checkpoints(pk, missing, self.clock())

    def _warn_of_low_disk(self) -> None:
        """Add an event to every running job, at most once an hour, while disk space is low."""
        free = disk.free_bytes(self.settings.runs)
        if free >= self.settings.low_disk_bytes:
            return
        now = self.clock()
        message = f"only {format_size(free)} of disk space are free for runs; writing checkpoints may soon fail"
        with self.lease.write(is_change=False) as session:
            jobs = JobRepository(session, now)
            for job in MaintenanceRepository(session).running_jobs():
                if jobs.last_event(job, "low_disk", since=now - _WARNING_INTERVAL) is None:
                    jobs.add_event(job, "low_disk", message, level="warning", data={"free_bytes": free})

    def _warn_of_missing_folders(self) -> None:
        """Add an event to every running job, at most once an hour, while its run directory is missing."""
        now = self.clock()
        with self.database.read() as session:
            running = MaintenanceRepository(session).running_job_ids()
        missing = {id_ for id_, uid in running if disk.is_missing(files_of_job(self.settings, uid), self._run(id_))}
        if not missing:
            return
        with self.lease.write(is_change=False) as session:
            jobs = JobRepository(session, now)
            for job in MaintenanceRepository(session).running_jobs():
                if job.id in missing and jobs.last_event(job, RUN_DIR_MISSING, since=now - _WARNING_INTERVAL) is None:
                    message = (
                        f"the run directory {self._run(job.id).root} was moved or deleted: what the job writes is "
                        "lost. Move it back, or cancel the job"
                    )
                    jobs.add_event(job, RUN_DIR_MISSING, message, level="error")

    def _purge_records(self) -> None:
        """Delete a batch of audit entries that exceed their retention, and such rows of plugins."""
        now = self.clock()
        audit_before = now - timedelta(days=self.settings.audit_retention_days)
        with self.database.read() as session:
            entries = AuditRepository(session).keys_before(audit_before, _PURGE_BATCH)
        if entries:
            with self.database.write() as session:
                AuditRepository(session).delete(entries)
        for delete in self.delete_old:
            delete(self.database, self.settings, now)
