"""Preparation of an attempt: the rows and files that must be durable before the scheduler is called.

The deadline of the call and the hash of the worker's token are committed, and the files of the attempt are written.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from service.as_owner.accounts import AccountError, UnknownAccountError
from service.auth.tokens import hash_token, new_worker_token
from service.cluster.repository import ClusterRepository
from service.core.clock import Clock
from service.core.errors import LeaseLostError, UnavailableError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.settings import Settings
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.submission.pool import NotSubmitted, Superseded
from service.run_files.files import AttemptFiles, RunFiles
from service.scheduler.backends import Backend
from service.scheduler.base import LaunchPlan, Rejected
from service.scheduler.launch_document import launch_document
from service.scheduler.launch_plan import inherited_environment, plan_launch
from service.specs.acceptance import AcceptedSpec, SpecAcceptance
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.launch import CurrentAttempt, LaunchDocument, Origin

_TOKEN_MODE = 0o600


def attempt_files(folder_name: str, document: LaunchDocument, token: str, created_by: str) -> AttemptFiles:
    """Return the files of an attempt. The launch document comes late: a folder that has it is complete."""
    run = RunLayout(Path())
    folder = run.attempt(folder_name)
    mode = 0o666 & ~document.umask
    current = CurrentAttempt(attempt_id=document.attempt_id, attempt=document.attempt, execution=document.execution)
    files: tuple[tuple[Path, int, str], ...] = (
        (run.spec, mode, _json(dump_spec(document.spec))),
        (run.creator, mode, _json({"created_by": created_by})),
        (folder.token, _TOKEN_MODE, token + "\n"),
        (folder.launch, mode, document.model_dump_json(by_alias=True, indent=2)),
        (run.current, mode, current.model_dump_json(indent=2) + "\n"),
    )
    folders = (folder.root.parent, folder.root, folder.logs, folder.spool, folder.errors, folder.submitit)
    named = tuple((str(path), permissions, content) for path, permissions, content in files)
    return AttemptFiles(0o777 & ~document.umask, tuple(map(str, folders)), named)


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


_ANNOUNCEMENT_LIFETIME = timedelta(seconds=60)
"""If writing the files took longer, because the process was stopped or the disk is slow, the submission is announced
again before the scheduler is called."""


@dataclass(frozen=True)
class Preparation:
    """Prepares attempts for the scheduler."""

    database: Database
    settings: Settings
    clock: Clock
    acceptance: SpecAcceptance
    lease: LeaderLease
    backend: Backend
    run_files: RunFiles
    search_path: Sequence[Path] = ()
    failpoint: Failpoint = no_failpoint

    def prepare(
        self,
        job_id: str,
        attempt_id: str,
        accepted: AcceptedSpec | None,
        expected: datetime | None,
        call_timeout: timedelta,
    ) -> LaunchPlan | Rejected | NotSubmitted | Superseded:
        """Commit the announcement and write the files of an attempt.

        Args:
            accepted: The spec of the job; None: load it from the database.
            expected: The attempt's `last_submit_at` on which the decision to submit was based.
            call_timeout: The longest time that the call of the scheduler can take.

        Returns:
            A plan if this caller, and no other, must now call the scheduler.
        """
        token = new_worker_token(attempt_id)
        try:
            job, attempt, accepted = self._load(job_id, attempt_id, accepted)
            if (problem := self.run_files.problem(job.unix_uid)) is not None:
                return Rejected(problem)
            folder = RunLayout(self.settings.runs / job.id).attempt(attempt.folder_name)
            document = self._document(job, attempt, accepted)
            plan = replace(self._plan(document, folder.root, job.unix_uid), submission=hash_token(token))
            self.failpoint("prepare.before-announcement")
            announced = self.clock()
            announce = partial(self._announce, job, attempt_id, plan.submission, plan.script)
            if not announce(expected, announced + call_timeout):
                return Superseded()
            self.failpoint("prepare.after-announcement")
            files = attempt_files(attempt.folder_name, document, token, job.created_by)
            self.run_files.write(job.unix_uid, job.id, files)
            self.failpoint("prepare.after-files")
            while self.clock() - announced > _ANNOUNCEMENT_LIFETIME:
                expected, announced = announced + call_timeout, self.clock()
                if not announce(expected, announced + call_timeout):
                    return Superseded()
        except UnknownAccountError as error:
            return NotSubmitted(str(error))
        except (ValueError, AccountError) as error:
            return Rejected(str(error))
        except LeaseLostError:
            return Superseded()
        except OSError as error:
            return NotSubmitted(f"the run directory cannot be written: {error}")
        except UnavailableError as error:
            return NotSubmitted(error.message)
        return plan

    def _load(self, job_id: str, attempt_id: str, accepted: AcceptedSpec | None) -> tuple[Job, Attempt, AcceptedSpec]:
        now = self.clock()
        with self.database.read() as session:
            jobs = JobRepository(session, now)
            job, attempt = jobs.get(job_id), jobs.get_attempt(attempt_id)
            if accepted is None:
                cluster = ClusterRepository(session).resource(self.settings.backend, now)
                accepted = self.acceptance.stored(parse_stored_spec(job.spec), cluster, job.created_by)
        return job, attempt, accepted

    def _announce(
        self, job: Job, attempt_id: str, token_hash: str, script: str, expected: datetime | None, deadline: datetime
    ) -> bool:
        """Commit that the scheduler is about to be called; False if another service has done so since."""
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            jobs.get_for_update(job.pk)
            row = jobs.reload_attempt(attempt_id)
            if row.last_submit_at != expected or row.scheduler_id is not None or row.ended_at is not None:
                return False
            row.last_submit_at, row.token_hash, row.script = deadline, token_hash, script
            row.absence_checks = 0
            session.flush()
            self.failpoint("prepare.before-commit")
        return True

    def _plan(self, document: LaunchDocument, folder: Path, uid: int | None) -> LaunchPlan:
        authorities = self.settings.worker_ca_file
        given = {"SSL_CERT_FILE": str(authorities)} if authorities else {}
        environment = inherited_environment(
            os.environ,
            machine=self.backend.inherited,
            listed=self.settings.job_environment,
            account=self.run_files.account(uid),
        )
        plan = plan_launch(
            document,
            folder=folder,
            python=self.settings.python,
            inherited=environment | given,
            search_path=self.search_path,
            uid=uid,
        )
        return replace(plan, script=self.backend.render_script(self.settings, document, plan))

    def _document(self, job: Job, attempt: Attempt, accepted: AcceptedSpec) -> LaunchDocument:
        return launch_document(
            accepted.spec,
            self.settings,
            accelerator=accepted.site.accelerator,
            partition_limit_minutes=accepted.site.partition_limit_minutes,
            has_limits=self.backend.has_limits,
            job_id=job.id,
            attempt_id=attempt.id,
            attempt=attempt.number,
            tag=attempt.tag,
            execution=attempt.execution,
            max_restarts=attempt.max_restarts,
            first_execution=job.first_execution,
            checkpoint_step=job.last_checkpoint_step,
            pause_at_step=job.pause_at_step,
            settle_seconds=self.backend.settle_seconds if job.open_spool is not None else 0,
            heartbeat_seconds=self.backend.heartbeat_seconds,
            origin=Origin.model_validate(job.origin) if job.origin else None,
            log_bytes=self.settings.log_disk_limit,
            excluded_nodes=tuple(dict.fromkeys([*attempt.excluded_nodes, *attempt.cluster_exclusions])),
        )
