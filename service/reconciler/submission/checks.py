"""Checks of a queued job before its submission: its accepted spec, or why it is rejected or has to wait."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from service.as_owner.accounts import UnknownAccountError
from service.cluster.repository import ClusterRepository
from service.core.clock import Clock
from service.core.errors import InvalidSpecError
from service.core.settings import Settings
from service.db.engine import Database
from service.db.models import Attempt, Job
from service.jobs.conditions import Condition
from service.jobs.repository import JobRepository
from service.jobs.service import RETRY
from service.jobs.submission import PREFLIGHT_OVERRIDDEN
from service.reconciler.site_events import ended_by_site, wait_after
from service.reconciler.submission.attempts import full_disks, newest_step
from service.run_files.files import RunFiles
from service.scheduler.launch_document import MSG_UNKNOWN_ACCELERATOR
from service.specs.acceptance import AcceptedSpec, SpecAcceptance
from service.specs.preflight import unavailable_resources
from trainyard.contract.problems import Problem
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.wire.jobs import ConditionCode

_CHANGE_FIELDS = "Change these fields and submit again; `trainyard cluster` shows the available resources."
_REDUCE_MEMORY = (
    "Change the spec so that it fits and submit again: `trainyard plan` shows its memory by part, `trainyard cluster` "
    "the available resources; `--force` submits it unchanged."
)


@dataclass(frozen=True)
class CheckedJob:
    """The result of the checks. Without problems and without a reason to wait, the job can be submitted."""

    job: Job
    """As it was loaded; a user may change its resources meanwhile."""
    accepted: AcceptedSpec
    resolved: bool = False
    """The spec was resolved just now, by the first cluster snapshot, and must be stored."""
    waiting: Condition | None = None
    """Why the job is not submitted yet."""
    problems: Sequence[Problem] = ()
    """Why the job can never run here."""
    hint: str = ""
    """How the user can solve the problems."""


_UNKNOWN_ACCOUNT_WAIT = timedelta(minutes=10)
"""How long an account must be unknown before its jobs are rejected."""
_FIRST_DISK_WAIT, _MAX_DISK_WAIT = timedelta(minutes=1), timedelta(minutes=30)


def _site_ends(job: Job, by_site: Sequence[Attempt]) -> dict[str, str]:
    """Return how the last attempts of a job ended without a fault of it."""
    if not by_site:
        return {}
    cause = (job.failure or {}).get("message") or by_site[0].scheduler_end or by_site[0].exit_reason
    return {"ends": str(len(by_site)), "cause": str(cause)}


def _wait_until(
    ended: datetime, wait: timedelta, now: datetime, code: ConditionCode, data: Mapping[str, str] = MappingProxyType({})
) -> Condition | None:
    """Return the condition of a job that waits; None after that. A clock that was set back does not make it longer."""
    until = ended + wait
    return Condition(code, {**data, "until": f"{until:%H:%M:%S} UTC"}) if ended <= now < until else None


@dataclass(frozen=True)
class SubmissionChecks:
    """Checks jobs against the newest cluster snapshot and the model's folder."""

    database: Database
    settings: Settings
    clock: Clock
    acceptance: SpecAcceptance
    run_files: RunFiles
    _unknown_since: dict[int, datetime] = field(default_factory=dict)
    """When the name service first did not know an account, by uid."""

    def check(self, job_pk: int) -> CheckedJob:
        """Load and check a queued job. Not to be called in a database session: it may read the model's folder.

        Only the first attempt is checked; a job that has run before is left to the scheduler.
        """
        now = self.clock()
        with self.database.read() as session:
            jobs = JobRepository(session, now)
            job = jobs.load(job_pk)
            forced = jobs.last_event(job, PREFLIGHT_OVERRIDDEN, since=None) is not None
            cluster = ClusterRepository(session).resource(self.settings.backend, now)
            waiting = self._wait(jobs, job, now) if job.attempts else None
        accepted = self.acceptance.stored(parse_stored_spec(job.spec), cluster, job.created_by)
        if (refused := self._check_account(job, accepted, now)) is not None:
            return refused
        if accepted.site.accelerator is None:
            return CheckedJob(job, accepted, waiting=Condition("not_checked", {"cause": MSG_UNKNOWN_ACCELERATOR}))
        if job.attempts:
            return CheckedJob(job, accepted, waiting=waiting)
        resolved = self.settings.known_accelerator is None
        if resolved:
            try:
                accepted = self.acceptance.resolve(accepted.spec, cluster, accepted.owner)
            except InvalidSpecError as error:
                return CheckedJob(job, accepted, problems=error.problems, hint=_CHANGE_FIELDS)
        problems = unavailable_resources(self.settings, accepted)
        check_memory = self.settings.slurm_preflight and not forced
        excess = self.acceptance.advisor.exceeds_memory(accepted) if check_memory else []
        hint = _REDUCE_MEMORY if excess else _CHANGE_FIELDS
        return CheckedJob(job, accepted, resolved, problems=[*problems, *excess], hint=hint)

    def _check_account(self, job: Job, accepted: AcceptedSpec, now: datetime) -> CheckedJob | None:
        """Return the result for a job that cannot run as its account, or not yet."""
        try:
            problem = self.run_files.problem(job.unix_uid)
        except UnknownAccountError as error:
            # A name service that does not answer looks like a name service without the account.
            since = self._unknown_since.setdefault(error.uid, now)
            if timedelta(0) <= now - since < _UNKNOWN_ACCOUNT_WAIT:
                return CheckedJob(job, accepted, waiting=Condition("not_checked", {"cause": str(error)}))
            problem = str(error)
        else:
            self._unknown_since.pop(job.unix_uid or 0, None)
        return None if problem is None else CheckedJob(job, accepted, problems=[Problem(param="", message=problem)])

    def _wait(self, jobs: JobRepository, job: Job, now: datetime) -> Condition | None:
        """Return the condition of a job that has run and must wait; a retry by a user ends the wait."""
        attempts = jobs.list_attempts(job)
        ended, retry = attempts[-1].ended_at, jobs.last_event(job, RETRY, since=None)
        if ended is None or (retry is not None and retry.created_at >= ended):
            return None
        if count := full_disks(attempts):
            return _wait_until(ended, min(_FIRST_DISK_WAIT * 2 ** (count - 1), _MAX_DISK_WAIT), now, "disk_wait")
        by_site = ended_by_site(attempts, newest_step(job), retry.created_at if retry else None)
        return _wait_until(ended, wait_after(len(by_site)), now, "site_wait", _site_ends(job, by_site))
