"""Advances all searches: load, decide, apply. Only the leader runs it, beside the ticks of the reconciler.

A proposal is drawn and checked before the transaction that stores the trial and its job. That transaction holds the
leader lease and finds the same number of trials as the proposal was drawn from, or stores nothing; the primary key of
trials ensures the same in the database. A service that is killed before the commit proposes the same values again, for
the same number; a service that is killed after it finds the trial.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.orm import Session

from service.auth.principals import Principal
from service.auth.unix_users import job_account
from service.core.clock import Clock
from service.core.errors import (
    InvalidRequestError,
    LeaseLostError,
    ServiceError,
    TooManyRequestsError,
    UnavailableError,
)
from service.core.failpoints import Failpoint, no_failpoint
from service.core.settings import RunAs
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Job, SweepTrial
from service.jobs.quota import UserQuotas
from service.jobs.repository import JobRepository
from service.jobs.submission import check_user_quotas, new_job, record_override, record_warnings
from service.plugins.sweeps.repository import SweepRepository
from service.plugins.sweeps.search.decide import NextMoves, next_moves
from service.plugins.sweeps.search.sampling import importance, propose
from service.plugins.sweeps.search.submission import submitter_of
from service.plugins.sweeps.search.trials import SearchState, load_search
from service.projects.repository import ProjectRepository
from service.projects.rules import check_project_quota, require_submit
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.wire.sweeps import member_spec

log = structlog.get_logger("sweeps")

SECONDS = 1.0
"""Pause between two runs if no search changed."""
_RETRY = timedelta(seconds=10)
"""Pause of a search whose user may not submit another job, or whose spec cannot be checked now."""
_OWNER = "sweeps"
"""In whose name proposals are computed in the pool of processes."""

AcceptTrial = Callable[[Principal, dict[str, Any], datetime], AcceptedSpec | RejectedSpec]
"""Validates, resolves and checks the spec of a trial. Raises ServiceError if that is not possible now."""
RunInProcess = Callable[..., Any]
"""Runs a function for an owner in another process: `ProcessPool.run`."""


@dataclass
class SweepSearcher:
    """Proposes, promotes and stops the trials of every search."""

    database: Database
    lease: LeaderLease
    clock: Clock
    accept: AcceptTrial
    run_in_process: RunInProcess
    quotas: UserQuotas
    run_as: RunAs = "service"
    failpoint: Failpoint = no_failpoint
    on_change: Callable[[], None] = lambda: None
    """Called after jobs were added or resumed."""
    _blocked: dict[str, datetime] = field(default_factory=dict)
    """When each search that could not start a trial tries again."""
    _explained: dict[str, int] = field(default_factory=dict)
    """The number of results for which this process last tried to compute the importance of fields."""

    def run_once(self) -> bool:
        """Advance every search by a step; return whether any may go on at once.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database is unavailable.
        """
        if not self.lease.is_leader:
            return False
        with self.database.read() as session:
            running = SweepRepository(session).running_searches()
        changed = False
        for sweep_id in running:
            try:
                changed |= self._advance(sweep_id)
            except (LeaseLostError, UnavailableError):
                raise
            except TooManyRequestsError:
                log.info("the processes for proposals are busy", sweep=sweep_id)
            except Exception:
                # The other searches must survive a bug in one of them.
                log.exception("a search cannot be advanced", sweep=sweep_id)
        if changed:
            self.on_change()
        return changed

    def _advance(self, sweep_id: str) -> bool:
        now = self.clock()
        with self.database.read() as session:
            state = load_search(session, SweepRepository(session).get(sweep_id), now)
        moves = next_moves(state.plan, state.trials, state.gpu_seconds)
        if moves.changes:
            self._apply(sweep_id)
        may_propose = moves.proposals > 0 and now >= self._blocked.get(sweep_id, now)
        proposed = may_propose and self._propose(state)
        self._explain(state)
        return moves.changes or proposed

    def _apply(self, sweep_id: str) -> None:
        """Decide again from rows that no other writer changes, and write the moves."""
        with self.lease.write() as session:
            now = self.clock()
            sweep = SweepRepository(session).get_for_update(sweep_id)
            if sweep.state != "running":
                return
            jobs = JobRepository(session, now)
            for pk in [job.pk for job in load_search(session, sweep, now).jobs.values()]:
                jobs.get_for_update(pk)
            state = load_search(session, sweep, now)
            moves = next_moves(state.plan, state.trials, state.gpu_seconds)
            _write(jobs, state, moves)
            self.failpoint("search.before-moves")
        self.failpoint("search.after-moves")

    def _propose(self, state: SearchState) -> bool:
        """Store another trial; return whether it was stored."""
        sweep = state.sweep
        try:
            values = self.run_in_process(_OWNER, propose, state.plan, state.trials)
        except InvalidRequestError:
            return self._wait(state, "the next proposal was not computed in time; the host of the service is busy")
        self.failpoint("search.after-proposal")
        principal, now = submitter_of(sweep), self.clock()
        try:
            accepted = self.accept(principal, member_spec(sweep.spec or {}, values), now)
        except TooManyRequestsError:
            raise
        except ServiceError as error:
            return self._wait(state, error.message)
        try:
            return self._store(state, values, accepted, now)
        except (LeaseLostError, UnavailableError):
            raise
        except ServiceError as error:
            return self._wait(state, error.message)

    def _store(
        self, state: SearchState, values: dict[str, Any], accepted: AcceptedSpec | RejectedSpec, now: datetime
    ) -> bool:
        """Store the next trial with its job, unless the search has changed.

        Raises:
            ServiceError: the user may not submit another job now.
        """
        number, sweep = len(state.trials), state.sweep
        with self.lease.write() as session:
            repository = SweepRepository(session)
            row = repository.get_for_update(sweep.id)
            if row.state != "running" or repository.count_trials([sweep.id]).get(sweep.id, 0) != number:
                return False
            bracket = state.plan.bracket_of(number)
            trial = SweepTrial(
                sweep_id=sweep.id, number=number, values=values, bracket=bracket, results={}, message="", created_at=now
            )
            if isinstance(accepted, RejectedSpec):
                trial.message = "; ".join(map(str, accepted.problems[:3]))
            else:
                job = self._add_job(session, state, accepted, now)
                job.pause_at_step = state.plan.first_pause(bracket)
                trial.job_id, row.message = job.id, ""
            repository.add_trial(trial)
            self.failpoint("search.before-trial")
        self.failpoint("search.after-trial")
        return True

    def _add_job(self, session: Session, state: SearchState, accepted: AcceptedSpec, now: datetime) -> Job:
        principal, sweep = submitter_of(state.sweep), state.sweep
        check_user_quotas(session, principal, self.quotas, now)
        projects = ProjectRepository(session)
        project = projects.facts(sweep.project, principal)
        require_submit(principal, project)
        check_project_quota(project, accepted.spec.gpus, 0 if project is None else projects.count_queued(project.name))
        job = new_job(accepted.spec, principal, now)
        job.project = sweep.project
        job.unix_uid = job_account(session, principal.name, self.run_as)
        job.sweep_id, job.sweep_parallel = sweep.id, sweep.max_parallel
        jobs = JobRepository(session, now)
        jobs.add(job)
        if sweep.force:
            record_override(jobs, job)
        record_warnings(jobs, job, accepted.warnings)
        return job

    def _wait(self, state: SearchState, cause: str) -> bool:
        """Explain why no trial starts, and try again later."""
        self._blocked[state.sweep.id] = self.clock() + _RETRY
        message = f"Waiting: {cause}"
        if state.sweep.message != message:
            with self.lease.write(is_change=False) as session:
                SweepRepository(session).get_for_update(state.sweep.id).message = message
        return False

    def _explain(self, state: SearchState) -> None:
        """Store the importance of the fields when there are more results than the last time."""
        sweep_id = state.sweep.id
        count = sum(trial.status == "succeeded" for trial in state.trials)
        count += sum(len(trial.results) for trial in state.trials)
        stored = (state.sweep.importance or {}).get("count", 0)
        if count <= max(stored, self._explained.get(sweep_id, 0)):
            return
        self._explained[sweep_id] = count
        shares = self.run_in_process(_OWNER, importance, state.plan, state.trials)
        if shares:
            with self.lease.write(is_change=False) as session:
                SweepRepository(session).get_for_update(sweep_id).importance = {"count": count, "shares": shares}


def _write(jobs: JobRepository, state: SearchState, moves: NextMoves) -> None:
    metric = state.plan.metric
    for number, rung in moves.record.items():
        value = state.trials[number].value
        state.rows[number].results = {**state.rows[number].results, str(rung): value}
        text = "no finite value" if value is None else f"{value:.6g}"
        data = {"step": rung, "metric": metric, "value": value}
        jobs.add_event(state.jobs[number], "rung_reached", f"paused at rung {rung}: {metric} is {text}", data=data)
    for number, pause_at in moves.promote.items():
        job = state.jobs[number]
        job.desired, job.pause_at_step = "run", pause_at
        until = "the end" if pause_at is None else f"step {pause_at}"
        message = f"among the best at its rung; continues to {until}"
        jobs.add_event(job, "promoted", message, data={"step": job.last_checkpoint_step, "pause_at_step": pause_at})
    for number in moves.stop:
        _stop(jobs, state.jobs[number])
    if moves.state != "running":
        state.sweep.state, state.sweep.message = moves.state, moves.message
        for job in state.jobs.values():
            # A retry or resume after the search runs to the end.
            job.pause_at_step = None


def _stop(jobs: JobRepository, job: Job) -> None:
    step = job.pause_at_step
    job.desired = "cancelled"
    message = f"Stopped early at step {step}: other trials of the sweep were better. `trainyard retry` continues it."
    jobs.finish(job, "stopped_early", message)
