"""The housekeeper: a round every half minute, by the service that reconciles and no other."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from service.api.dependencies import Services
from service.code import store
from service.db.leader_lease import LeaderLease
from service.jobs.repository import JobRepository
from service.maintenance import disk
from service.maintenance.repository import MaintenanceRepository
from service.maintenance.retention import forget
from trainyard.contract.layout import RunLayout

log = structlog.get_logger("housekeeping")

SECONDS = 30.0
"""Between two rounds."""
_MEASURE_AGAIN = timedelta(seconds=60)
_MEASURED_AT_ONCE = 200
_MEASURING_SECONDS = 10.0
_ORPHAN_SECONDS = 3600.0
"""A request takes less."""
_WARN_AGAIN = timedelta(hours=1)
_CODE_AGAIN = timedelta(hours=6)


@dataclass
class MaintenanceTask:
    """One round is one call of `run_once`. Cut short anywhere, the next one goes on."""

    services: Services
    lease: LeaderLease
    _tidied: bool = field(default=False)
    _code_seen: datetime | None = field(default=None)

    def run_once(self) -> bool:
        """Finish what was asked, then measure, then warn; nothing is left to be done at once.

        Raises:
            LeaseLostError: another service does it now.
            UnavailableError: the database does not answer.
        """
        if not self.lease.is_leader:
            return False
        self._delete_jobs()
        self._remove_checkpoints()
        if not self._tidied:
            self._tidy()
            self._tidied = True
        self._forget_code()
        self._measure()
        self._warn()
        self.services.audit_log.flush()
        forget(self.services)
        return False

    def _tidy(self) -> None:
        """What an earlier service had begun: removals, and forks that it had no time to accept."""
        runs = self.services.settings.runs
        disk.empty(runs)
        with self.services.database.read() as session:
            known = MaintenanceRepository(session).job_ids()
        for name in disk.unaccepted_forks(runs, known, time.time() - _ORPHAN_SECONDS):
            log.info("a fork that was never accepted is removed", job=name)
            disk.discard(runs, runs / name, name)

    def _forget_code(self) -> None:
        """Uploads that no job refers to, and that nobody has asked for of late."""
        now, runs = self.services.clock(), self.services.settings.runs
        if self._code_seen is not None and now - self._code_seen < _CODE_AGAIN:
            return
        self._code_seen = now
        before = (now - timedelta(days=self.services.settings.code_days)).timestamp()
        if not (old := store.old(runs, before)):
            return
        with self.services.database.read() as session:
            used = MaintenanceRepository(session).codes()
        # Looked at again: one that was asked for meanwhile is no longer old.
        gone = [path for path in store.old(runs, before) if path in old and store.digest_of(path) not in used]
        for path in gone:
            path.unlink(missing_ok=True)
        log.info("uploaded code that no job refers to is removed", archives=len(gone))

    def _delete_jobs(self) -> None:
        with self.services.database.read() as session:
            deleted = [(job.pk, job.id) for job in MaintenanceRepository(session).deleted_jobs()]
        for pk, job_id in deleted:
            self.services.failpoint("delete.before-files")
            try:
                disk.discard(self.services.settings.runs, self.services.run(job_id).root, job_id)
            except OSError as error:
                log.warning("a run directory cannot be removed yet", job=job_id, error=str(error))
                continue
            self.services.failpoint("delete.after-files")
            more = True
            while more:
                with self.lease.write(counts=False) as session:
                    more = MaintenanceRepository(session).delete_piece(pk)
            with self.lease.write(counts=False) as session:
                MaintenanceRepository(session).delete_job(pk)
            log.info("deleted", job=job_id)

    def _remove_checkpoints(self) -> None:
        with self.services.database.read() as session:
            removed = MaintenanceRepository(session).removed_checkpoints()
        for checkpoint_id, job_id, step in removed:
            with self.services.database.read() as session:
                if not MaintenanceRepository(session).is_to_be_removed(checkpoint_id):
                    continue
            try:
                path = self.services.run(job_id).checkpoint(step).root
                disk.discard(self.services.settings.runs, path, checkpoint_id)
            except OSError as error:
                log.warning("a checkpoint cannot be removed yet", job=job_id, step=step, error=str(error))
                continue
            self.services.failpoint("remove.after-files")
            with self.lease.write(counts=False) as session:
                MaintenanceRepository(session).checkpoint_removed(checkpoint_id)

    def _measure(self) -> None:
        before = self.services.clock() - _MEASURE_AGAIN
        with self.services.database.read() as session:
            due = MaintenanceRepository(session).to_measure(before, _MEASURED_AT_ONCE)
        until = time.monotonic() + _MEASURING_SECONDS
        sizes = []
        for pk, job_id in due:
            self._compare(pk, self.services.run(job_id))
            sizes.append((pk, disk.used_bytes(self.services.run(job_id).root)))
            if time.monotonic() > until:
                break
        if sizes:
            now = self.services.clock()
            with self.lease.write(counts=False) as session:
                for pk, size in sizes:
                    MaintenanceRepository(session).measured(pk, size, now)

    def _compare(self, pk: int, run: RunLayout) -> None:
        """What is told of checkpoints agrees with the disk."""
        with self.services.database.read() as session:
            told = MaintenanceRepository(session).kept_steps(pk)
        if told and (gone := disk.missing(run, told)):
            with self.lease.write(counts=False) as session:
                MaintenanceRepository(session).checkpoints_gone(pk, gone, self.services.clock())

    def _warn(self) -> None:
        """In the history of every job that may fail for it, once an hour."""
        free, least = disk.free_bytes(self.services.settings.runs), self.services.settings.low_disk_bytes
        if free >= least:
            return
        now = self.services.clock()
        words = f"only {free / 1e9:.1f} GB are free for runs; below that checkpoints cannot be written for long"
        with self.lease.write(counts=False) as session:
            jobs = JobRepository(session, now)
            for job in MaintenanceRepository(session).running():
                if jobs.last_event(job, "low_disk", since=now - _WARN_AGAIN) is None:
                    jobs.add_event(job, "low_disk", words, level="warning", data={"free_bytes": free})
