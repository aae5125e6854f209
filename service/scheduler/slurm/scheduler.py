"""The Slurm scheduler: submission through submitit in other processes, observation with one squeue and one sacct."""

import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import structlog

from service.as_owner.calls import OwnerCalls
from service.core.clock import Clock, utc_now
from service.core.untrusted_files import files_of_attempt
from service.scheduler.base import (
    SUBMITTER_MARGIN_SECONDS,
    Accepted,
    Ambiguous,
    Forecast,
    LaunchPlan,
    NoAnswerYetError,
    Observation,
    QueueEntry,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from service.scheduler.slurm.accounting import SlurmAccounts
from service.scheduler.slurm.commands import (
    CommandCounter,
    Row,
    SlurmCommands,
    clean_environment,
    count_nothing,
    owner_environment,
)
from service.scheduler.slurm.ends import EndEvidence
from service.scheduler.slurm.late_answers import CallsPerJob, LateAnswers
from service.scheduler.slurm.owner_submission import recorded_answer, recorded_ids, submit_as_owner
from service.scheduler.slurm.pending import count_ahead, describe_pending, needs_other_jobs
from service.scheduler.slurm.sbatch_output import parse_forecast, parse_sbatch_output
from service.scheduler.slurm.states import (
    describe_completing,
    describe_suspended,
    failure_of,
    interpret_state,
    state_name,
)
from service.scheduler.slurm.submit_client import SubmitServerClient
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.cluster import ClusterSnapshot


@dataclass(frozen=True)
class CachedObservation:
    """The last observation of an attempt, for a scheduler id; another job may claim the attempt later."""

    scheduler_id: str
    """Empty: valid for every id."""
    observation: Observation | None
    """None: nothing was learned."""

    def for_job(self, job: SubmittedJob) -> Observation | None:
        """The observation, if it is about this job's scheduler id."""
        return self.observation if self.scheduler_id in ("", job.scheduler_id) else None


log = structlog.get_logger("slurm")

_CANCEL_INTERVAL_SECONDS = 60.0
_SUBMISSION_RETENTION_SECONDS = 3600.0
_QUEUE_MAX_AGE_SECONDS = 60.0
"""How old the queue may be from which `own_entries` returns."""
_MAX_NAMES = 500
"""Maximum number of names in an accounting query, whose length is limited."""
_MAX_IDS = 10_000
"""Maximum number of ids in an accounting query: 90,000 bytes as an argument, of which Linux allows 128 KiB."""
_SUBMITTED = Observation("pending", "Submitted to Slurm.")
_ABSENT = Observation("absent", "Slurm: not listed")
_ABSENT_ONCE = replace(_ABSENT, confirmed=False)


class SlurmScheduler:
    """Keeps only caches in memory: all facts come from Slurm or from the attempt's folder."""

    name: Literal["local", "slurm"] = "slurm"

    def __init__(
        self,
        *,
        poll_seconds: float = 5.0,
        submit_seconds: float = 300.0,
        target: str = "worker.launcher.supervisor:run",
        clock: Clock = utc_now,
        count: CommandCounter = count_nothing,
        owners: OwnerCalls | None = None,
        runs: Path | None = None,
        commands: SlurmCommands | None = None,
    ) -> None:
        """Create the scheduler.

        Args:
            poll_seconds: The least time between two queries of the queue, however often `observe` is called.
            submit_seconds: The time limit of sbatch.
            target: The function that the job runs, as `module:function`.
            owners: Set where jobs run as their owners.
            runs: The folder of the runs; needed with `owners`.
            commands: Slurm's commands; by default the commands of this machine.
        """
        self._submit_seconds = submit_seconds
        self._poll_seconds = poll_seconds
        self._target = target
        self._clock = clock
        self._count = count
        self._owners = owners
        self._commands = commands or SlurmCommands(count, owners, runs)
        self._accounts = SlurmAccounts(self._commands)
        self._ends = EndEvidence(self._commands, self._accounts)
        self._submit_client = SubmitServerClient()
        self._queue: list[Row] = []
        self._other_jobs: list[Row] = []
        """Jobs of other accounts, queried only while a job of this service waits for priority."""
        self._queue_queried_at = float("-inf")
        """When the query for `_queue` was started."""
        self._records: list[Row] = []
        self._record_names: frozenset[str] = frozenset()
        """The names for which `_records` is the accounting's answer."""
        self._records_queried_at = float("-inf")
        self._answers: LateAnswers[list[Row] | None] = LateAnswers("sacct")
        self._last_queried_job = (0, "")
        """The last job of the previous accounting query, if there were too many for a single query."""
        self._polled_at = float("-inf")
        self._observed: dict[str, CachedObservation] | SchedulerUnavailableError = {}
        self._submission_times: dict[str, float] = {}
        self._submission_lock = threading.Lock()
        """Guards `_submission_times`, since submissions run in other threads."""
        self._cancellations = CallsPerJob("scancel", _CANCEL_INTERVAL_SECONDS)

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        try:
            outcome = self._submit(plan)
            self._count("sbatch", "failed" if isinstance(outcome, Ambiguous) else "ok")
            return outcome
        finally:
            with self._submission_lock:
                self._submission_times[plan.tag] = time.monotonic()

    def _submit(self, plan: LaunchPlan) -> SubmitOutcome:
        if plan.uid is not None and self._owners is not None:
            return submit_as_owner(self._owners, plan.uid, self._request(plan), self._submit_seconds)
        try:
            result = json.loads(self._run_submitter(plan))
            return parse_sbatch_output(result["returncode"], result["stdout"], result["stderr"])
        except (OSError, EOFError, ValueError, KeyError) as error:
            if ids := recorded_ids(plan.folder, plan.uid):
                return Accepted(ids[0])
            log_file = AttemptLayout(plan.folder).submitit / "submit.log"
            return Ambiguous(files_of_attempt(plan.folder, plan.uid).last_line(log_file) or str(error))

    def _request(self, plan: LaunchPlan) -> dict[str, Any]:
        """A submitter's request. All of the environment is copied into the job."""
        ours = clean_environment() if plan.uid is None else owner_environment()
        return {
            "folder": str(plan.folder),
            "submission": plan.submission,
            "script": plan.script,
            "nodes": plan.nodes,
            "environment": {**plan.environment, **{name: ours[name] for name in ours if name.startswith("SLURM_")}},
            "target": self._target,
            "limit_seconds": self._submit_seconds,
        }

    def _run_submitter(self, plan: LaunchPlan) -> bytes:
        """Run a submitter with the plan's environment, and return its result."""
        submitit = AttemptLayout(plan.folder).submitit
        submitit.mkdir(exist_ok=True)
        with (submitit / "submit.log").open("wb") as log_file:
            return self._submit_client.run(
                self._request(plan), log_file, self._submit_seconds + SUBMITTER_MARGIN_SECONDS
            )

    def observe(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        self._cancellations.start_tick()
        # After a failure Slurm is polled even without jobs: nothing is submitted until it responds again.
        needed = jobs or isinstance(self._observed, SchedulerUnavailableError)
        if needed and time.monotonic() - self._polled_at >= self._poll_seconds:
            try:
                self._observed = self._poll(jobs)
            except SchedulerUnavailableError as error:
                self._observed = error
            self._polled_at = time.monotonic()
        if isinstance(self._observed, SchedulerUnavailableError):
            raise self._observed
        # The last poll does not include later submissions.
        new = CachedObservation("", _SUBMITTED)
        observations = {job.tag: self._observed.get(job.tag, new).for_job(job) for job in jobs}
        return {tag: observation for tag, observation in observations.items() if observation is not None}

    def _poll(self, jobs: Sequence[SubmittedJob]) -> dict[str, CachedObservation]:
        """Call squeue once, and sacct once for the jobs that the queue lacks or whose end it does not explain."""
        self._query_queue()
        observed = self._matching(jobs, self._queue)
        missing = self._next_batch([job for job in jobs if job.tag not in observed])
        unclear = [job for job in jobs if _is_unclear(observed.get(job.tag)) and not job.is_stopping]
        queried = [*missing, *unclear][:_MAX_IDS]
        rows: dict[str, Row] = {}
        unrecorded = {job.tag for job in unclear}
        try:
            recorded, ids = self._recorded(queried, "poll") if queried else (None, frozenset())
        except SchedulerUnavailableError as error:
            # The queue's answer is enough for the jobs in it; the others wait for the accounting.
            log.warning("accounting unavailable", error=str(error))
            # A job that the service has cancelled can no longer start, and its worker leaves an exit record.
            slow = isinstance(error, NoAnswerYetError)
            gone = [job for job in missing if job.is_stopping or (slow and self._was_absent(job))]
            observed = {job.tag: self._absence(job) for job in gone} | observed
        else:
            rows = recorded or {}
            unrecorded = set() if recorded is None else unrecorded - rows.keys()
            absent = {job.tag: self._absence(job) for job in missing if job.scheduler_id in ids}
            observed = absent | observed | {tag: _observation(row, {}, self._clock()) for tag, row in rows.items()}
        ours = {job.tag for job in jobs if job.is_stopping and _is_unclear(observed.get(job.tag))}
        by_others = {tag: observation for tag, observation in observed.items() if tag not in ours}
        known = observed | self._ends.collect(by_others, {tag: row.state for tag, row in rows.items()}, unrecorded)
        return {job.tag: CachedObservation(job.scheduler_id, known.get(job.tag)) for job in jobs}

    def _was_absent(self, job: SubmittedJob) -> bool:
        known = None if isinstance(self._observed, SchedulerUnavailableError) else self._observed.get(job.tag)
        before = known.for_job(job) if known else None
        return before is not None and before.state == "absent"

    def _absence(self, job: SubmittedJob) -> Observation:
        return _ABSENT if self._was_absent(job) else _ABSENT_ONCE

    def _recorded(
        self, jobs: Sequence[SubmittedJob], purpose: Literal["poll", "late"]
    ) -> tuple[dict[str, Row] | None, frozenset[str]]:
        """The accounting's records of the jobs that have ended, by tag, and the ids that it was asked about.

        None: the cluster has no accounting. A late answer is as good: its jobs were over when it was asked.
        """
        ids = [job.scheduler_id for job in jobs]
        answer = self._answers.ask(purpose, frozenset(ids), partial(self._commands.sacct, ids=ids))
        if answer.value is None:
            return None, answer.question
        # Only the controller knows the running jobs: an unfinished record that it does not list is outdated.
        rows = _rows_of(jobs, answer.value)
        return {tag: row for tag, row in rows.items() if interpret_state(row.state)[0] == "ended"}, answer.question

    def recorded_ends(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        rows, now = self._recorded(jobs, "late")[0] or {}, self._clock()
        return {tag: self._ends.with_canceller(_observation(row, {}, now), row.state) for tag, row in rows.items()}

    def _next_batch(self, missing: Sequence[SubmittedJob]) -> Sequence[SubmittedJob]:
        """As many jobs as an accounting query can hold; the next queries hold further jobs."""
        if len(missing) <= _MAX_IDS:
            return missing
        ordered = sorted(missing, key=_numeric_id)
        later = [job for job in ordered if _numeric_id(job) > self._last_queried_job]
        batch = [*later, *ordered][:_MAX_IDS]
        self._last_queried_job = _numeric_id(batch[-1])
        return batch

    def _query_queue(self) -> None:
        if self._owners:
            self._accounts.require_all_jobs()
        started = time.monotonic()
        self._queue, self._other_jobs = self._commands.squeue(everyone=needs_other_jobs(self._queue))
        self._queue_queried_at = started
        with self._submission_lock:
            self._submission_times = {
                tag: at for tag, at in self._submission_times.items() if started - at < _SUBMISSION_RETENTION_SECONDS
            }

    def _matching(self, jobs: Sequence[SubmittedJob], rows: Sequence[Row]) -> dict[str, Observation]:
        """The observations of the jobs that the rows contain."""
        ahead_by_id = count_ahead(self._queue, self._other_jobs) if needs_other_jobs(rows) else {}
        now = self._clock()
        return {tag: _observation(row, ahead_by_id, now) for tag, row in _rows_of(jobs, rows).items()}

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        # A query serves all tags that were submitted before it, within a poll interval.
        since = max(time.monotonic() - self._poll_seconds, self._submission_times.get(tag, float("-inf")))
        if self._queue_queried_at <= since:
            self._query_queue()
        root, account = os.path.realpath(folder), os.getuid() if uid is None else uid
        queue = [row for row in self._queue if row.uid == account]
        rows = [row for row in queue if row.name == tag or row.folder == root]
        if not rows:
            records = self._accounting_records(tag, unconfirmed_tags, since)
            rows = [row for row in records if row.name == tag and row.uid == account]
        ended = {row.id for row in rows if interpret_state(row.state)[0] == "ended"}
        ids = {row.id for row in rows} | set(recorded_ids(folder, uid))
        claimant = _claimant(folder, uid)
        return sorted(ids, key=lambda job_id: (job_id != claimant, job_id in ended, int(job_id)))

    def _accounting_records(self, tag: str, unconfirmed_tags: Sequence[str], since: float) -> list[Row]:
        """The accounting's records of a tag, queried together with the records of the other tags."""
        answered = self._record_names if self._records_queried_at > since else frozenset()
        if tag not in answered:
            others = (other for other in unconfirmed_tags if other not in answered)
            names = list(dict.fromkeys([tag, *others]))[:_MAX_NAMES]
            answer = self._answers.ask("find", frozenset(names), partial(self._commands.sacct, names=names))
            self._records = answer.value or []
            self._record_names, self._records_queried_at = answer.question, answer.started
            if tag not in answer.question:
                raise NoAnswerYetError(f"sacct: it has not been asked about {tag} yet")
        return self._records

    def recorded_answer(self, folder: Path, submission: str, uid: int | None = None) -> SubmitOutcome | None:
        return recorded_answer(folder, submission, uid)

    def own_entries(self) -> list[QueueEntry]:
        if time.monotonic() - self._queue_queried_at >= _QUEUE_MAX_AGE_SECONDS:
            self._query_queue()
        rows = [(row, interpret_state(row.state)[0]) for row in self._queue if row.name.startswith("ty-")]
        ours = os.getuid()
        return [
            QueueEntry(row.name, row.id, state, None if row.uid == ours else row.uid)
            for row, state in rows
            if state in ("pending", "running")
        ]

    def cancel(self, job: SubmittedJob) -> None:
        """Slurm sends SIGTERM and, after its KillWait, SIGKILL; the request is repeated once a minute at most."""
        row = _row_of(job, _by_id(self._queue))
        call = partial(self._commands.scancel, job.scheduler_id, row.name if row else job.tag, job.uid)
        self._cancellations.make(job.scheduler_id, call)

    def exclude_nodes(self, jobs: Sequence[SubmittedJob], nodes: Sequence[str]) -> None:
        self._commands.exclude([job.scheduler_id for job in jobs], nodes, jobs[0].uid)

    def forecast(self, script: str) -> Forecast:
        return parse_forecast(*self._commands.test_only(script))

    def cluster(self) -> ClusterSnapshot:
        snapshot = self._commands.sinfo()
        # The accounts of the service's own user are not the accounts of the owners of jobs.
        return snapshot if self._owners else self._accounts.add_to(snapshot)


def _is_unclear(observation: Observation | None) -> bool:
    """Whether the accounting knows more than the queue: who cancelled a job, or whether a signal killed its script,
    which Slurm 22.05 shows as a failed launch."""
    return observation is not None and observation.end_state in ("cancelled", "launch_failed")


def _numeric_id(job: SubmittedJob) -> tuple[int, str]:
    return len(job.scheduler_id), job.scheduler_id


def _by_id(rows: Sequence[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.id, []).append(row)
    return grouped


def _rows_of(jobs: Sequence[SubmittedJob], rows: Sequence[Row]) -> dict[str, Row]:
    """The newest row of each job that has rows, by tag."""
    by_id = _by_id(rows)
    return {job.tag: row for job in jobs if (row := _row_of(job, by_id)) is not None}


def _row_of(job: SubmittedJob, by_id: Mapping[str, Sequence[Row]]) -> Row | None:
    """Return the newest row of the job. Its account must match, since any user may give a job any name; and its name or
    folder, since Slurm may reuse an id for another job."""
    account = os.getuid() if job.uid is None else job.uid
    for row in reversed(by_id.get(job.scheduler_id, ())):
        is_named = row.name == job.tag or (row.folder and row.folder == os.path.realpath(job.folder))
        if is_named and row.uid == account:
            return row
    return None


def _observation(row: Row, ahead_by_id: Mapping[str, int], now: datetime) -> Observation:
    state, end_state = interpret_state(row.state)
    nodes = (row.nodes,) if row.nodes else ()
    if state == "pending":
        return describe_pending(row, ahead_by_id, now)
    if state == "ended":
        end_state = failure_of(row.detail, row.steps) if end_state == "failed" else end_state
        code = f", exit code {row.detail}" if re.fullmatch(r"\d+:\d+", row.detail) else ""
        if end_state in ("failed", "launch_failed") and not code and row.detail not in ("", "None"):
            # The queue has no exit code, but a reason such as NonZeroExitCode or RaisedSignal:10.
            code = f", {row.detail}"
        # The accounting adds who cancelled a job: `CANCELLED by 1000`.
        name = row.state if end_state in ("cancelled", "dropped") else state_name(row.state)
        return Observation("ended", f"Slurm: {name}{code}", nodes, end_state=end_state, started_at=row.start)
    suspended = describe_suspended(row.state, row.id)
    message = suspended or describe_completing(row.state, row.id)
    return Observation("running", message, nodes, end=row.end, suspended=bool(suspended))


def _claimant(folder: Path, uid: int | None) -> str | None:
    """The scheduler id in the attempt's claim file. A pipe or link in its place is ignored."""
    try:
        claim = json.loads(files_of_attempt(folder, uid).read(AttemptLayout(folder).claim, 0, 65536) or b"null")
    except (OSError, ValueError):
        return None
    return claim.get("scheduler_id") if isinstance(claim, dict) else None
