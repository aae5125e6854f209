"""Finding orphans: entries in the scheduler's queue and run directories that no job of the database names.

After a restore these are the jobs that were submitted since the backup. They are only listed; administrators decide.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import structlog
from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.auth.principals import Principal
from service.auth.repository import TokenRepository, UnixUserRepository
from service.cluster.orphans import OrphanRepository, UnknownEntry
from service.core.clock import Clock, is_due
from service.core.errors import LeaseLostError, ServiceError, UnavailableError
from service.core.ids import job_created_at, scheduler_tag
from service.core.settings import Settings
from service.core.untrusted_files import UntrustedFiles, files_of_job
from service.db.leader_lease import LeaderLease
from service.db.models import Job, Orphan
from service.jobs.submission import new_job
from service.projects.repository import ProjectRepository
from service.reconciler.adoption import Adoption
from service.reconciler.repository import find_job, job_ids, known_tags
from service.reconciler.unknown_attempts import read_current
from service.scheduler.base import QueueEntry, Scheduler, SchedulerUnavailableError, SubmittedJob
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.orphans import JobCreator

_ENTRIES_INTERVAL = timedelta(minutes=5)
_FOLDERS_INTERVAL = timedelta(hours=1)
_REQUEST_INTERVAL = timedelta(seconds=10)
"""The interval while requests are open, so that their effect is visible soon."""
_MAX_ORPHANS = 1000
_MAX_FOLDERS = 10_000
"""Folders without a job that are looked at, the newest first. Any job can make folders beside its own."""
_MAX_CLOCK_SKEW = timedelta(days=1)
_MAX_SPEC_BYTES = 4 * 1024 * 1024
_MAX_CREATOR_BYTES = 4096

log = structlog.get_logger("orphans")


@dataclass
class OrphanScan:
    """Lists orphans at the start and then every few minutes, and carries out the requests of administrators about
    them."""

    clock: Clock
    settings: Settings
    scheduler: Scheduler
    lease: LeaderLease
    adoption: Adoption
    _entries_at: datetime | None = field(default=None, init=False)
    _folders_at: datetime | None = field(default=None, init=False)
    _folders: Sequence[UnknownEntry] = field(default=(), init=False)
    """The run directories without a job."""
    _accounts: dict[str, int | None] = field(default_factory=dict, init=False)
    """The Unix accounts that own them, by their ids; None: the service's account."""

    def scan_again(self) -> None:
        """Have the next call list everything anew."""
        self._entries_at = self._folders_at = None

    def run_once(self) -> None:
        """Serve the requests, then list the orphans if that is due.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database does not answer.
        """
        with self.lease.database.read() as session:
            requested = OrphanRepository(session).list_requested()
        for orphan in requested:
            self._serve(orphan)
        now = self.clock()
        if not is_due(self._entries_at, now, _REQUEST_INTERVAL if requested else _ENTRIES_INTERVAL):
            return
        self._entries_at = now
        try:
            entries = self.scheduler.own_entries()
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            return
        if is_due(self._folders_at, now, _FOLDERS_INTERVAL):
            try:
                self._folders, self._folders_at = list(islice(self._unknown_folders(now), _MAX_ORPHANS)), now
            except OSError as error:
                log.warning("run directories cannot be listed", error=str(error))
        self._store(self._combine(entries), now)

    def _store(self, orphans: Mapping[str, UnknownEntry], now: datetime) -> None:
        with self.lease.database.read() as session:
            rows = OrphanRepository(session).list_all()
        if {row.id: _entry(row) for row in rows} == orphans:
            return
        with self.lease.write(is_change=False) as session:
            new = OrphanRepository(session).replace(orphans, now)
        for entry in new:
            log.warning("orphan: no job of the database names it", **asdict(entry))
        if orphans:
            log.warning("orphans exist; see `trainyard orphans`", count=len(orphans))

    def _combine(self, entries: Sequence[QueueEntry]) -> dict[str, UnknownEntry]:
        """Return the entries that no attempt names together with the folders that no job names, by id."""
        prefix = f"ty-{self.settings.instance}-"
        ours = {(entry.tag, entry.uid): entry for entry in entries if entry.tag.startswith(prefix)}
        with self.lease.database.read() as session:
            known = known_tags(session, list({tag for tag, _ in ours}))
        claims = Counter((folder.tag, self._accounts[folder.id]) for folder in self._folders)
        # A tag that several folders of an account have is evidence for none of them.
        folders = {(each.tag, self._accounts[each.id]): each for each in self._folders}
        evidence = {key: folder for key, folder in folders.items() if claims[key] == 1}
        orphans, running = [], set()
        # Any user may give a job any name: entries that belong to a folder come last and replace others of their tag.
        for key in sorted(ours, key=lambda key: (key in evidence, key[0])):
            if key[0] in known:
                continue
            orphan = evidence.get(key, UnknownEntry(id=key[0]))
            orphans.append(replace(orphan, tag=key[0], scheduler_id=ours[key].scheduler_id, state=ours[key].state))
            running.add(orphan.id)
        orphans += [folder for folder in self._folders if folder.id not in running]
        return {orphan.id: orphan for orphan in orphans[:_MAX_ORPHANS]}

    def _unknown_folders(self, now: datetime) -> Iterator[UnknownEntry]:
        """Yield the run directories that no job names. The link of a fork that was never accepted has no spec."""
        latest = now + _MAX_CLOCK_SKEW
        with os.scandir(self.settings.runs) as listed:
            names = {
                entry.name
                for entry in listed
                if (created := job_created_at(entry.name)) is not None
                and created <= latest
                and entry.is_dir(follow_symlinks=False)
            }
        with self.lease.database.read() as session:
            names -= job_ids(session)
        for name in sorted(names, reverse=True)[:_MAX_FOLDERS]:
            run = RunLayout(self.settings.runs / name)
            try:
                uid = self._account(run)
            except OSError:
                continue
            files = files_of_job(self.settings, uid)
            if (spec := _read_spec(files, run)) is None:
                continue
            current = read_current(files, run)
            tag = scheduler_tag(self.settings.instance, current.attempt_id) if current else None
            self._accounts[name] = uid
            yield UnknownEntry(name, name, spec.name, _read_creator(files, run), tag=tag, folder=str(run.root))

    def _account(self, run: RunLayout) -> int | None:
        """Return the Unix account that owns a run directory; None: the service's account.

        Raises:
            OSError: there is no run directory.
        """
        if self.settings.run_as == "service":
            return None
        uid = run.root.lstat().st_uid
        return None if uid == os.getuid() else uid

    def _serve(self, orphan: Orphan) -> None:
        try:
            if orphan.requested == "cancel":
                self._cancel(orphan)
            else:
                self._adopt(orphan)
        except (UnavailableError, LeaseLostError):
            raise
        except SchedulerUnavailableError as error:
            self._report(orphan, error, final=False)
        except Exception as error:
            # A request must not keep the others waiting, and the folder may hold anything.
            self._report(orphan, error, final=True)

    def _report(self, orphan: Orphan, error: Exception, *, final: bool) -> None:
        """Store why a request could not be fulfilled.

        Args:
            final: Whether the request ends; else it is repeated.
        """
        is_expected = isinstance(error, (SchedulerUnavailableError, ValueError, ServiceError))
        message = (str(error).splitlines() or [type(error).__name__])[0]
        trace = None if is_expected else error
        log.warning("request about an orphan failed", orphan=orphan.id, error=message, exc_info=trace)
        with self.lease.write() as session:
            row = OrphanRepository(session).require(orphan.id)
            row.message = message
            if final:
                row.requested = None

    def _cancel(self, orphan: Orphan) -> None:
        if orphan.tag is not None and orphan.scheduler_id is not None:
            folder = Path(orphan.folder) if orphan.folder else self.settings.runs
            key = orphan.tag, orphan.scheduler_id
            uids = [entry.uid for entry in self.scheduler.own_entries() if (entry.tag, entry.scheduler_id) == key]
            self.scheduler.cancel(SubmittedJob(*key, folder, uids[0] if uids else None))

    def _adopt(self, orphan: Orphan) -> None:
        """Make a job of a run directory. It is paused, and runs if an attempt is adopted with it."""
        if orphan.job_id is None:
            raise ValueError("no run directory belongs to it")
        run = RunLayout(self.settings.runs / orphan.job_id)
        try:
            uid = self._account(run)
        except OSError:
            raise ValueError("there is no run directory") from None
        if (spec := _read_spec(files_of_job(self.settings, uid), run)) is None:
            raise ValueError("the spec in the run directory cannot be read")
        with self.lease.database.read() as session:
            job = find_job(session, orphan.job_id)
            project = ProjectRepository(session).canonical_name(spec.project)
            owner, role, now = orphan.requested_by or "admin", "admin", self.clock()
            if uid is not None:
                owner = _owner_of(session, uid)
                role = TokenRepository(session).submitter_role(owner, now) or "user"
            elif orphan.owner is not None:
                owner, role = orphan.owner, TokenRepository(session).submitter_role(orphan.owner, now) or "user"
        if job is None:
            self.adoption.insert(_new_job(orphan.job_id, spec, project, owner, role, now, uid))
        else:
            self.adoption.examine(job.pk)
        with self.lease.write() as session:
            session.delete(OrphanRepository(session).require(orphan.id))
        self.scan_again()


def _entry(row: Orphan) -> UnknownEntry:
    return UnknownEntry(**{each.name: getattr(row, each.name) for each in fields(UnknownEntry)})


def _owner_of(session: Session, uid: int) -> str:
    """Return the user of a Unix account. Raises ValueError: the account belongs to no user."""
    name = UnixUserRepository(session).name(uid)
    if name is None:
        raise ValueError(
            f"the run directory belongs to uid {uid}, the account of no user: `trainyard tokens link` adds one"
        )
    return name


def _new_job(
    job_id: str, spec: TrainingSpec, project: str | None, owner: str, role: str, now: datetime, uid: int | None
) -> Job:
    """Make a paused job without secrets: its program could have named the secrets of whoever adopts it."""
    message = "Adopted from its run directory. `trainyard resume` continues from the last checkpoint."
    if names := spec.environment.secrets:
        spec = spec.model_copy(update={"environment": spec.environment.model_copy(update={"secrets": ()})})
        message += f" It no longer gets {', '.join(names)}: to set them, fork it with environment.secrets."
    job = new_job(spec, Principal("user", "", owner), job_created_at(job_id) or now, job_id=job_id)
    job.status, job.desired, job.status_message, job.updated_at = "paused", "paused", message, now
    job.project, job.submitter_role, job.unix_uid, job.attempts, job.next_execution = project, role, uid, 0, 1
    return job


def _read_spec(files: UntrustedFiles, run: RunLayout) -> TrainingSpec | None:
    """Return the spec in a run directory, which the job could change."""
    try:
        return TrainingSpec.model_validate_json(files.read(run.spec, 0, _MAX_SPEC_BYTES))
    except (OSError, ValidationError):
        return None


def _read_creator(files: UntrustedFiles, run: RunLayout) -> str | None:
    """Return the user whom the run directory names; the job could have changed it."""
    try:
        return JobCreator.model_validate_json(files.read(run.creator, 0, _MAX_CREATOR_BYTES)).created_by
    except (OSError, ValidationError):
        return None
