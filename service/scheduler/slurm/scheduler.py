"""The scheduler port on Slurm: submission by submitit in a child process, observation by one squeue and one sacct."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import structlog

from service.core.clock import Clock, utc_now
from service.scheduler.base import (
    SUBMITTER_MARGIN_SECONDS,
    Accepted,
    Ambiguous,
    Forecast,
    LaunchPlan,
    Observation,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from service.scheduler.slurm.accounts import SlurmAccounts
from service.scheduler.slurm.commands import CommandCounter, Row, SlurmCommands, clean_environment, ignore
from service.scheduler.slurm.pending import count_ahead, waiting, waits_behind_others
from service.scheduler.slurm.sbatch_output import read_answer, read_forecast
from service.scheduler.slurm.states import meaning, suspended, word
from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.cluster import ClusterSnapshot

log = structlog.get_logger("slurm")

_SUBMITTER = "service.scheduler.slurm.submit"
_CANCEL_AGAIN_SECONDS = 60.0
_REMEMBERED_SECONDS = 3600.0
_NAMES_AT_ONCE = 500
"""In one question to the accounting, whose length is bounded."""
_IDS_AT_ONCE = 10_000
"""As an argument 90 kB long; Linux takes 128 kB in one."""
_HANDED_OVER = Observation("pending", "handed to Slurm")


@dataclass(frozen=True)
class _Told:
    """What Slurm has said of one job of an attempt, which may have another since: the one that has claimed it."""

    scheduler_id: str
    """Empty: any."""
    seen: Observation | None
    """None: nothing was learned."""

    def of(self, known: SubmittedJob) -> Observation | None:
        """What that says of this job."""
        return self.seen if self.scheduler_id in ("", known.scheduler_id) else None


class SlurmScheduler:
    """Remembers nothing that matters: everything is asked of Slurm, or read from the attempt's folder."""

    name: Literal["local", "slurm"] = "slurm"

    def __init__(
        self,
        *,
        poll_seconds: float = 5.0,
        submit_seconds: float = 300.0,
        target: str = "worker.launch:run",
        clock: Clock = utc_now,
        count: CommandCounter = ignore,
    ) -> None:
        """Slurm is asked once in `poll_seconds`, however often `observe` is called; sbatch has `submit_seconds`."""
        self._submit_seconds = submit_seconds
        self._poll_seconds = poll_seconds
        self._target = target
        self._clock = clock
        self._count = count
        self._commands = SlurmCommands(count)
        self._accounts = SlurmAccounts(self._commands)
        self._queue: list[Row] = []
        self._others: list[Row] = []
        """Jobs of other accounts, asked for only while one of ours waits behind them."""
        self._queue_time = float("-inf")
        """Before the question to which the queue is the answer."""
        self._past: list[Row] = []
        self._searched: frozenset[str] = frozenset()
        """The names to which `_past` is the accounting's answer."""
        self._searched_at = float("-inf")
        self._in_turn = (0, "")
        """The last id of those that the accounting was asked about, where there were too many for one question."""
        self._asked = float("-inf")
        self._last: dict[str, _Told] | SchedulerUnavailableError = {}
        self._handed_over: dict[str, float] = {}
        self._lock = threading.Lock()
        """Of `_handed_over`: submissions run beside the tick."""
        self._cancelled: dict[str, float] = {}

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        try:
            outcome = self._submit(plan)
            self._count("sbatch", "failed" if isinstance(outcome, Ambiguous) else "ok")
            return outcome
        finally:
            with self._lock:
                self._handed_over[plan.tag] = time.monotonic()

    def _submit(self, plan: LaunchPlan) -> SubmitOutcome:
        try:
            request = {
                "folder": str(plan.folder),
                "script": plan.script,
                "nodes": plan.nodes,
                "target": self._target,
                "limit_seconds": self._submit_seconds,
            }
            file = plan.folder / "submit.json"
            write_atomic(file, json.dumps(request), mode=0o600)
            answer = json.loads(_run_submitter(plan, file, self._submit_seconds + SUBMITTER_MARGIN_SECONDS))
            return read_answer(answer["returncode"], answer["stdout"], answer["stderr"])
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            if found := _submitted(plan.folder):
                return Accepted(found[0])
            return Ambiguous(_reason(plan.folder) or str(error))

    def observe(self, known: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        # After a failure even about nothing: until it is known that Slurm answers, nothing is handed to it.
        wanted = known or isinstance(self._last, SchedulerUnavailableError)
        if wanted and time.monotonic() - self._asked >= self._poll_seconds:
            try:
                self._last = self._ask(known)
            except SchedulerUnavailableError as error:
                self._last = error
            self._asked = time.monotonic()
        if isinstance(self._last, SchedulerUnavailableError):
            raise self._last
        # What was handed over since is not in the last answer, which says nothing of it.
        new = _Told("", _HANDED_OVER)
        told = {one.tag: self._last.get(one.tag, new).of(one) for one in known}
        return {tag: seen for tag, seen in told.items() if seen is not None}

    def _ask(self, known: Sequence[SubmittedJob]) -> dict[str, "_Told"]:
        """One squeue, and one sacct for what the controller has forgotten."""
        self._look()
        observed = self._matching(known, self._queue)
        missing = self._next([one for one in known if one.tag not in observed])
        try:
            records = self._commands.sacct(ids=[one.scheduler_id for one in missing]) if missing else None
        except SchedulerUnavailableError as error:
            # Of what is in the queue the controller has told enough, and what is not may wait for the accounting.
            log.warning("accounting unavailable", error=str(error))
            return {one.tag: _Told(one.scheduler_id, observed.get(one.tag)) for one in known}
        past = self._matching(missing, records or [])
        # The controller alone knows what runs: an unfinished record that it does not list is out of date.
        observed |= {tag: seen for tag, seen in past.items() if seen.state == "ended"}
        observed = {one.tag: Observation("absent") for one in missing} | observed
        return {one.tag: _Told(one.scheduler_id, observed.get(one.tag)) for one in known}

    def _next(self, missing: Sequence[SubmittedJob]) -> Sequence[SubmittedJob]:
        """As many as one question holds; of more, others the next time."""
        if len(missing) <= _IDS_AT_ONCE:
            return missing
        ordered = sorted(missing, key=_by_number)
        later = [one for one in ordered if _by_number(one) > self._in_turn]
        chosen = [*later, *ordered][:_IDS_AT_ONCE]
        self._in_turn = _by_number(chosen[-1])
        return chosen

    def _look(self) -> None:
        before = time.monotonic()
        self._queue, self._others = self._commands.squeue(everyone=waits_behind_others(self._queue))
        self._queue_time = before
        with self._lock:
            recent = {tag: at for tag, at in self._handed_over.items() if before - at < _REMEMBERED_SECONDS}
            self._handed_over = recent

    def _matching(self, known: Sequence[SubmittedJob], rows: Sequence[Row]) -> dict[str, Observation]:
        """Identity is id and name: an id that Slurm gave to another job says nothing of ours."""
        listed = {(row.id, row.name): row for row in rows}
        found = [(one, listed.get((one.scheduler_id, one.tag))) for one in known]
        ahead = count_ahead(self._queue, self._others) if waits_behind_others(rows) else {}
        now = self._clock()
        return {one.tag: _observation(row, ahead, now) for one, row in found if row is not None}

    def find(self, tag: str, folder: Path, also: Sequence[str] = ()) -> list[str]:
        # One look serves for all that were handed over before it, and only for this breath: the next must be a new one.
        since = max(time.monotonic() - self._poll_seconds, self._handed_over.get(tag, float("-inf")))
        if self._queue_time <= since:
            self._look()
        rows = [row for row in self._queue if row.name == tag]
        if not rows:
            rows = [row for row in self._records(tag, also, since) if row.name == tag]
        ended = {row.id for row in rows if meaning(row.state)[0] == "ended"}
        found = {row.id for row in rows} | set(_submitted(folder))
        claimant = _claimant(folder)
        return sorted(found, key=lambda job: (job != claimant, job in ended, int(job)))

    def _records(self, tag: str, also: Sequence[str], since: float) -> list[Row]:
        """What the accounting knows of a name, asked together with the others'."""
        answered = self._searched if self._searched_at > since else frozenset()
        if tag not in answered:
            others = (other for other in also if other not in answered)
            names = list(dict.fromkeys([tag, *others]))[:_NAMES_AT_ONCE]
            before = time.monotonic()
            self._past = self._commands.sacct(names=names) or []
            self._searched, self._searched_at = frozenset(names), before
        return self._past

    def cancel(self, known: SubmittedJob) -> None:
        """Slurm sends SIGTERM and, after its KillWait, SIGKILL; asked again only after a while."""
        now = time.monotonic()
        if now - self._cancelled.get(known.scheduler_id, float("-inf")) < _CANCEL_AGAIN_SECONDS:
            return
        self._commands.scancel(known.scheduler_id, known.tag)
        recent = {job: at for job, at in self._cancelled.items() if now - at < _CANCEL_AGAIN_SECONDS}
        self._cancelled = {**recent, known.scheduler_id: now}

    def forecast(self, script: str) -> Forecast:
        return read_forecast(*self._commands.test_only(script))

    def cluster(self) -> ClusterSnapshot:
        return self._accounts.beside(self._commands.sinfo())


def _by_number(known: SubmittedJob) -> tuple[int, str]:
    return len(known.scheduler_id), known.scheduler_id


def _observation(row: Row, ahead: Mapping[str, int], now: datetime) -> Observation:
    state, ended_as = meaning(row.state)
    nodes = (row.nodes,) if row.nodes else ()
    if state == "pending":
        return waiting(row, ahead, now)
    if state == "ended":
        code = f", exit code {row.detail}" if re.fullmatch(r"\d+:\d+", row.detail) else ""
        return Observation("ended", f"Slurm: {word(row.state)}{code}", nodes, ended_as=ended_as)
    stopped = suspended(row.state, row.id)
    return Observation("running", stopped, nodes, suspended=bool(stopped))


def _run_submitter(plan: LaunchPlan, request: Path, seconds: float) -> bytes:
    """Run the submitter to its end, with the job's environment: all of it is copied into the job."""
    slurm = {name: value for name, value in clean_environment().items() if name.startswith("SLURM_")}
    AttemptLayout(plan.folder).submitit.mkdir(exist_ok=True)
    with (AttemptLayout(plan.folder).submitit / "submit.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", _SUBMITTER, str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**plan.environment, **slurm},
            cwd=plan.folder,
            start_new_session=True,
        )
        with child:
            try:
                return child.communicate(timeout=seconds)[0]
            finally:
                _end_session(child)


def _end_session(child: "subprocess.Popen[bytes]") -> None:
    """The submitter and its sbatch: one that was given up must not be answered minutes later."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _submitted(folder: Path) -> list[str]:
    """The ids under which submitit has filed this attempt's batch script: a second record of sbatch's answer."""
    names = (path.name.partition("_")[0] for path in AttemptLayout(folder).submitit.glob("*_submission.sh"))
    return sorted((name for name in names if name.isdigit()), key=int)


def _claimant(folder: Path) -> str | None:
    """The job that has claimed the attempt, where one has. A pipe or a link that the job has left there is no claim."""
    try:
        handle = os.open(AttemptLayout(folder).claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            claim = json.loads(file.read(65536) or b"null")
    except (OSError, ValueError):
        return None
    return claim.get("scheduler_id") if isinstance(claim, dict) else None


def _reason(folder: Path) -> str:
    """The submitter's last line, where it wrote one."""
    log = AttemptLayout(folder).submitit / "submit.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""
