"""What must be durable before the scheduler is asked: the time and the token's hash, and the files on disk."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service.api.dependencies import AppState
from service.auth.tokens import hash_token, new_worker_token
from service.cluster.placement import Place, find_place
from service.core.errors import InvalidSpecError, LeaseLostError, UnavailableError
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.submission import PREFLIGHT_OVERRIDDEN
from service.planner.service import accept, outsized, ungiven
from service.reconciler.submission.pool import NotAsked, Superseded
from service.scheduler.base import LaunchPlan, Rejected
from service.scheduler.launch_document import MSG_UNKNOWN_ACCELERATOR, launch_document
from service.scheduler.launch_plan import inherited_environment, plan_launch
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.launch import LaunchDocument, Origin

_STALE = timedelta(seconds=60)
"""Who said longer ago that it asks, because it was stopped or its disk is slow, says so again before it does."""


_HEARTBEAT_SECONDS = 10
_LOCAL_HEARTBEAT_SECONDS = 2
"""Of the few jobs of one machine, which hear of a pause the sooner."""


@dataclass(frozen=True)
class Settled:
    """What the cluster's snapshot has made of a spec that was accepted without one."""

    spec: dict[str, Any] | None = None
    """Resolved; None: it was already."""
    problems: Sequence[Problem] = ()
    """Why it cannot run there."""
    waiting: str = ""
    """Why nothing can be said yet."""


@dataclass(frozen=True)
class Preparation:
    """Readies attempts for the scheduler."""

    services: AppState
    slurm: bool = False
    search_path: Sequence[Path] = ()
    batch_script: Callable[[LaunchDocument, LaunchPlan], str] | None = None
    """What is submitted, where the scheduler takes a script of its own kind."""

    def prepare(
        self, lease: LeaderLease, job_id: str, attempt_id: str, seen: datetime | None, asking: timedelta
    ) -> LaunchPlan | Rejected | NotAsked | Superseded:
        """Make everything ready; a plan means that the scheduler is to be asked now, by this caller alone.

        Args:
            seen: the attempt's `last_submit_at` on which the decision to ask was made.
            asking: the longest that the question can be under way.
        """
        token = new_worker_token(attempt_id)
        try:
            job, attempt = self._load(job_id, attempt_id)
            folder = self.services.run(job.id).attempt(attempt.number)
            document = self._document(job, attempt, self._place(job))
            plan = self._plan(document, folder.root)
            self.services.failpoint("prepare.before-announcement")
            said = self.services.clock()
            announce = partial(self._announce, lease, job, attempt_id, hash_token(token), plan.script)
            if not announce(seen, said + asking):
                return Superseded()
            self.services.failpoint("prepare.after-announcement")
            _write_files(self.services.run(job.id), folder, document, token)
            self.services.failpoint("prepare.after-files")
            while self.services.clock() - said > _STALE:
                seen, said = said + asking, self.services.clock()
                if not announce(seen, said + asking):
                    return Superseded()
        except ValueError as error:
            return Rejected(str(error))
        except LeaseLostError:
            return Superseded()
        except OSError as error:
            return NotAsked(f"the run directory cannot be written: {error}")
        except UnavailableError as error:
            return NotAsked(error.message)
        return plan

    def refusals(self, session: Session, job: Job) -> list[Problem]:
        """What of a new job this cluster can never give. A job that has run before is left to the scheduler."""
        if not self.slurm or job.attempts:
            return []
        return ungiven(session, self.services.settings, parse_spec(job.spec), self.services.clock())

    def settle(self, job_pk: int) -> Settled:
        """What of a new job waited for the cluster's first snapshot. Reads its model's folder: in no session."""
        now = self.services.clock()
        with self.services.database.read() as session:
            job = JobRepository(session, now).load(job_pk)
            document, resources = job.spec, parse_spec(job.spec).resources
            if find_place(session, self.services.settings, resources, now).accelerator is None:
                return Settled(waiting=MSG_UNKNOWN_ACCELERATOR)
        if job.attempts or self.services.settings.known_accelerator is not None:
            return Settled()
        try:
            return Settled(spec=dump_spec(accept(self.services, document, now).spec))
        except InvalidSpecError as error:
            return Settled(problems=error.problems)

    def outsized(self, job_pk: int, settled: dict[str, Any] | None = None) -> list[Problem]:
        """Why a new job cannot fit the memory of the GPUs it asks for. Reads its model's folder: in no session.

        Args:
            settled: its spec, where that is to change.
        """
        if not self.services.settings.slurm_preflight:
            return []
        with self.services.database.read() as session:
            jobs = JobRepository(session, self.services.clock())
            job = jobs.load(job_pk)
            if job.attempts or jobs.last_event(job, PREFLIGHT_OVERRIDDEN, since=None):
                return []
            document = settled or job.spec
        return outsized(self.services, document, self.services.clock())

    def _load(self, job_id: str, attempt_id: str) -> tuple[Job, Attempt]:
        with self.services.database.read() as session:
            jobs = JobRepository(session, self.services.clock())
            return jobs.get(job_id), jobs.get_attempt(attempt_id)

    def _announce(
        self,
        lease: LeaderLease,
        job: Job,
        attempt_id: str,
        token_hash: str,
        script: str,
        seen: datetime | None,
        until: datetime,
    ) -> bool:
        """Commit that the scheduler is about to be asked; False where another has done so since."""
        with lease.write() as session:
            jobs = JobRepository(session, self.services.clock())
            jobs.get_for_update(job.pk)
            row = jobs.reload_attempt(attempt_id)
            if row.last_submit_at != seen or row.scheduler_id is not None or row.ended_at is not None:
                return False
            row.last_submit_at, row.token_hash, row.script = until, token_hash, script
            row.absence_checks = 0
            session.flush()
            self.services.failpoint("prepare.before-commit")
        return True

    def _plan(self, document: LaunchDocument, folder: Path) -> LaunchPlan:
        plan = plan_launch(
            document,
            folder=folder,
            python=self.services.settings.python,
            inherited=inherited_environment(os.environ),
            search_path=self.search_path,
        )
        return replace(plan, script=self.batch_script(document, plan)) if self.batch_script else plan

    def _place(self, job: Job) -> Place:
        with self.services.database.read() as session:
            resources = parse_spec(job.spec).resources
            return find_place(session, self.services.settings, resources, self.services.clock())

    def _document(self, job: Job, attempt: Attempt, place: Place) -> LaunchDocument:
        return launch_document(
            parse_spec(job.spec),
            self.services.settings,
            accelerator=place.accelerator,
            partition_limit_minutes=place.limit_minutes,
            slurm=self.slurm,
            job_id=job.id,
            attempt_id=attempt.id,
            attempt=attempt.number,
            tag=attempt.tag,
            execution=attempt.execution,
            max_restarts=attempt.max_restarts,
            first_execution=job.first_execution,
            heartbeat_seconds=_HEARTBEAT_SECONDS if self.slurm else _LOCAL_HEARTBEAT_SECONDS,
            origin=Origin.model_validate(job.origin) if job.origin else None,
            log_bytes=self.services.settings.log_disk_limit,
            excluded_nodes=tuple(attempt.excluded_nodes),
        )


def _write_files(run: RunLayout, folder: AttemptLayout, document: LaunchDocument, token: str) -> None:
    """The launch document last: a folder with it is complete."""
    write_atomic(run.spec, _json(dump_spec(document.spec)))
    write_atomic(folder.token, token + "\n", mode=0o600)
    for part in (folder.logs, folder.spool, folder.errors):
        part.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.launch, document.model_dump_json(by_alias=True, indent=2))
    write_atomic(run.current, _json({"attempt_id": document.attempt_id, "attempt": document.attempt}))


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"
