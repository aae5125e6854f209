"""Observing jobs in Slurm, with cached and partial answers."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.scheduler.base import Canceller, SchedulerUnavailableError, SubmittedJob
from service.scheduler.slurm import late_answers
from service.scheduler.slurm.commands import NodeReason, Row, SlurmCommands
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.scheduler.slurm.states import BY_CONTROLLER
from tests.support.wait import wait_until

NOWHERE = Path("/nowhere")
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST, SECOND = SubmittedJob("ty-1", "1", NOWHERE), SubmittedJob("ty-2", "2", NOWHERE)


class FakeCommands(SlurmCommands):
    """A controller and an accounting that return what the test has set."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Row] = []
        self.controller = self.accounting = True
        self.hangs: Callable[[], None] | None = None
        """Lets the accounting fail after a while."""
        self.without_slurmdbd = False
        self.queue_queries = 0
        self.past: list[Row] = []
        self.ids: list[Sequence[str]] = []
        self.reasons: list[str] = []
        self.since = START
        self.nodes: list[str] = []
        self.sinfo = True
        self.sinfo_answers = threading.Event()
        self.sinfo_answers.set()

    def node_reasons(self, nodes: str) -> list[NodeReason]:
        self.sinfo_answers.wait(60)
        if not self.sinfo:
            raise SchedulerUnavailableError("sinfo ended with 1")
        self.nodes.append(nodes)
        return [NodeReason(text, self.since) for text in self.reasons]

    def configuration(self) -> str:
        return "SlurmUser               = nobody(65534)\n"

    def squeue(self, *, everyone: bool = False) -> tuple[list[Row], list[Row]]:
        self.queue_queries += 1
        if not self.controller:
            raise SchedulerUnavailableError("squeue ended with 1")
        return self.queue, []

    def sacct(self, *, ids: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row] | None:
        if self.hangs:
            self.hangs()
        if self.hangs or not self.accounting:
            raise SchedulerUnavailableError("sacct ended with 1")
        self.ids.append(ids)
        if self.without_slurmdbd:
            return None
        return [row for row in self.past if row.id in ids]


def row(known: SubmittedJob, state: str, detail: str = "None") -> Row:
    return Row(known.scheduler_id, known.tag, state, detail, "node1", start=START, uid=os.getuid())


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that the scheduler reads, to be set."""
    now = [1000.0]
    monkeypatch.setattr("service.scheduler.slurm.scheduler.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def commands() -> FakeCommands:
    return FakeCommands()


@pytest.fixture
def scheduler(commands: FakeCommands, time: list[float]) -> SlurmScheduler:
    return SlurmScheduler(poll_seconds=5, commands=commands)


def test_the_end_of_a_duplicate_is_not_reported_for_its_claimant(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    commands.queue = [row(FIRST, "COMPLETED")]
    assert scheduler.observe([FIRST])["ty-1"].state == "ended"
    claimant = SubmittedJob("ty-1", "7", NOWHERE)
    commands.queue.append(row(claimant, "RUNNING"))
    time[0] += 1
    assert scheduler.observe([claimant]) == {}, "Slurm has not been asked about it yet"
    time[0] += 5
    assert scheduler.observe([claimant])["ty-1"].state == "running"


@pytest.mark.parametrize(
    ("reason", "message"),
    [("NonZeroExitCode", "Slurm: FAILED, NonZeroExitCode"), ("None", "Slurm: FAILED"), ("1:0", None)],
)
def test_a_failed_job_is_observed_with_slurms_reason(
    scheduler: SlurmScheduler, commands: FakeCommands, reason: str, message: str | None
) -> None:
    commands.queue = [Row("1", "ty-1", "FAILED", reason, "node1", uid=os.getuid())]
    assert scheduler.observe([FIRST])["ty-1"].message == (message or f"Slurm: FAILED, exit code {reason}")


def test_a_node_failure_states_why_the_node_is_out_of_service(
    scheduler: SlurmScheduler, commands: FakeCommands
) -> None:
    commands.queue = [row(FIRST, "NODE_FAIL"), row(SECOND, "RUNNING")]
    commands.reasons = ["node1 is down: Not responding"]
    observed = scheduler.observe([FIRST, SECOND])
    assert observed["ty-1"].message == "Slurm: NODE_FAIL; node1 is down: Not responding"
    assert (observed["ty-2"].message, commands.nodes) == ("", ["node1"])


@pytest.mark.parametrize(
    ("reason", "minutes", "left", "prolog"),
    [
        ("node1 is drained: Prolog error", 1, True, True),
        ("node1 is drained: kernel update", 0, True, False),
        ("node1 is drained: kernel update", -1, False, False),
        ("node1 is drained: Kill task failed", 1, False, False),
        ("node1 is drained: Epilog error", 1, False, False),
    ],
)
def test_a_node_explains_a_cancellation_if_it_left_service_since_the_start(
    scheduler: SlurmScheduler, commands: FakeCommands, reason: str, minutes: int, left: bool, prolog: bool
) -> None:
    commands.queue, commands.without_slurmdbd = (
        [row(FIRST, "CANCELLED"), row(SECOND, "FAILED", "JobLaunchFailure")],
        True,
    )
    commands.reasons, commands.since = [reason], START + timedelta(minutes=minutes)
    observed = scheduler.observe([FIRST, SECOND])
    assert (observed["ty-1"].node_left, observed["ty-1"].prolog_failed) == (left, prolog)
    assert (reason in observed["ty-1"].message) is left
    assert observed["ty-2"].end_state == "launch_failed"
    assert reason in observed["ty-2"].message


@pytest.mark.parametrize(
    ("by", "canceller"),
    [
        ("0", Canceller("root", is_administrator=True)),
        ("65534", Canceller("nobody", is_administrator=True)),
        ("1", Canceller("daemon")),
        ("123456", Canceller("uid 123456")),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_cancelled_job_states_by_whom(
    scheduler: SlurmScheduler, commands: FakeCommands, by: str, canceller: Canceller, listed: bool
) -> None:
    commands.queue = [row(FIRST, "CANCELLED")] if listed else []
    commands.past = [row(FIRST, f"CANCELLED by {by}", "0:15")]
    observed = scheduler.observe([FIRST])["ty-1"]
    assert (observed.message, observed.canceller) == (f"Slurm: CANCELLED by {by}, exit code 0:15", canceller)
    assert commands.ids == [["1"]]


def test_a_job_that_the_controller_cancelled_was_dropped(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue, commands.past = [row(FIRST, "CANCELLED")], [row(FIRST, BY_CONTROLLER, "0:0")]
    assert scheduler.observe([FIRST])["ty-1"].end_state == "dropped"


@pytest.mark.parametrize("missing", ["no record", "an old record", "an early record", "sacct", "sinfo"])
def test_a_cancelled_job_waits_for_its_evidence_but_not_for_ever(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float], missing: str
) -> None:
    commands.queue = [row(FIRST, "CANCELLED"), row(SECOND, "RUNNING")]
    # slurmdbd has the end of a short job before its start, and with it the name and the account.
    early = Row("1", "allocation", "CANCELLED by 1", "0:0", "node1", start=START, uid=0)
    records = {"an old record": row(FIRST, "RUNNING"), "an early record": early}
    commands.past = [records[missing]] if missing in records else []
    commands.accounting, commands.sinfo = missing != "sacct", missing != "sinfo"
    if missing == "sinfo":
        commands.past = [row(FIRST, "CANCELLED by 1")]
    began = time[0]
    while "ty-1" not in (observed := scheduler.observe([FIRST, SECOND])):
        assert observed["ty-2"].state == "running"
        time[0] += 5
    assert time[0] - began == 30
    assert observed["ty-1"].end_state == "cancelled"
    assert (observed["ty-1"].canceller is None) == (missing != "sinfo")
    assert observed["ty-1"].unrecorded == (missing != "sinfo"), "the accounting may explain it later"


def test_a_hanging_sinfo_delays_only_the_ends_that_it_may_explain(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 0.01)
    commands.queue = [row(FIRST, "FAILED", "NonZeroExitCode"), row(SECOND, "RUNNING")]
    commands.reasons = ["node1 is drained: Prolog error"]
    commands.sinfo_answers.clear()
    for _ in range(3):
        assert {tag: each.state for tag, each in scheduler.observe([FIRST, SECOND]).items()} == {"ty-2": "running"}
        time[0] += 5
    commands.sinfo_answers.set()
    wait_until(lambda: not any(each.name == "late-answer" for each in threading.enumerate()), 30, "the answer")
    assert scheduler.observe([FIRST, SECOND])["ty-1"].prolog_failed
    assert commands.nodes == ["node1"]


def test_a_failing_prolog_explains_a_failed_job(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue = [row(FIRST, "FAILED", "NonZeroExitCode")]
    commands.reasons = ["node1 is drained: Prolog error"]
    assert scheduler.observe([FIRST])["ty-1"].prolog_failed


def test_a_signal_is_no_failed_launch(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    """Slurm 22.05 has the same reason for both in the queue; the exit code in the accounting differs."""
    commands.queue = [row(FIRST, "FAILED", "JobLaunchFailure"), row(SECOND, "FAILED", "JobLaunchFailure")]
    commands.past = [row(FIRST, "FAILED", "0:9"), row(SECOND, "FAILED", "0:53")]
    observed = scheduler.observe([FIRST, SECOND])
    assert [observed[tag].end_state for tag in ("ty-1", "ty-2")] == ["failed", "launch_failed"]


def test_a_step_without_memory_explains_a_failed_job(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    """The launcher runs in a step; the batch script that has started it only fails."""
    commands.past = [
        replace(row(FIRST, "FAILED", "1:0"), steps="0:125"),
        replace(row(SECOND, "FAILED", "1:0"), steps="1:0"),
    ]
    observed = scheduler.observe([FIRST, SECOND])
    assert [observed[tag].end_state for tag in ("ty-1", "ty-2")] == ["out_of_memory", "failed"]


def test_a_record_that_comes_late_names_the_canceller(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    commands.queue = [row(FIRST, "CANCELLED")]
    assert scheduler.observe([FIRST]) == {}
    time[0] += 5
    commands.past = [row(FIRST, "CANCELLED by 1")]
    assert scheduler.observe([FIRST])["ty-1"].canceller == Canceller("daemon")


def test_the_accounting_names_the_canceller_later(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    assert scheduler.recorded_ends([FIRST, SECOND]) == {}
    other = replace(row(SECOND, "CANCELLED by 1"), name="ty-3")
    commands.past = [row(FIRST, "CANCELLED by 1", "0:15"), other]
    (end,) = scheduler.recorded_ends([FIRST, SECOND]).values()
    assert (end.canceller, end.message) == (Canceller("daemon"), "Slurm: CANCELLED by 1, exit code 0:15")
    commands.past = [row(FIRST, "RUNNING")]
    assert scheduler.recorded_ends([FIRST]) == {}, "its end is not recorded yet"


def test_without_accounting_no_end_is_explained_later(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue, commands.without_slurmdbd = [row(FIRST, "CANCELLED")], True
    assert not scheduler.observe([FIRST])["ty-1"].unrecorded
    assert scheduler.recorded_ends([FIRST]) == {}


def test_an_accounting_that_hangs_delays_other_jobs_once_a_minute(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    calls = []

    def hang() -> None:
        calls.append(time[0])
        time[0] += 20

    commands.queue, commands.hangs = [row(SECOND, "RUNNING")], hang
    for _ in range(36):
        assert set(scheduler.observe([FIRST, SECOND])) == {"ty-2"}
        time[0] += 5
    assert [later - earlier for earlier, later in pairwise(calls)] == [80, 80]
    commands.hangs = None
    commands.past = [row(FIRST, "COMPLETED")]
    time[0] += 60
    assert scheduler.observe([FIRST, SECOND])["ty-1"].state == "ended"


def test_a_cancelled_job_does_not_wait_for_an_accounting_that_hangs(
    scheduler: SlurmScheduler, commands: FakeCommands
) -> None:
    commands.accounting = False
    observed = scheduler.observe([replace(FIRST, is_stopping=True), SECOND])
    assert {tag: each.state for tag, each in observed.items()} == {"ty-1": "absent"}, (
        "nothing is concluded of the other"
    )


def test_an_absence_is_confirmed_by_the_next_answer(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    commands.queue = [row(FIRST, "PENDING")]
    confirmed = []
    for queue in ([], [], [row(FIRST, "PENDING")], [], []):
        commands.queue = queue
        for _ in range(2):  # the same answer
            observed = scheduler.observe([FIRST])["ty-1"]
            confirmed.append((observed.state, observed.confirmed))
        time[0] += 5
    assert confirmed[::2] == confirmed[1::2]
    absent = [("absent", False), ("absent", True)]
    assert confirmed[::2] == [*absent, ("pending", True), *absent]


def test_a_slow_accounting_delays_no_poll(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "service.scheduler.slurm.late_answers._BRIEF_SECONDS"
    monkeypatch.setattr(limit, 0.01)
    opened, answered = threading.Event(), threading.Event()
    query = commands.sacct

    def slow(**selection: Any) -> list[Row] | None:
        opened.wait(30)
        answered.set()
        return query(**selection)

    monkeypatch.setattr(commands, "sacct", slow)
    commands.queue, commands.past = [row(SECOND, "RUNNING")], [row(FIRST, "COMPLETED"), row(SECOND, "COMPLETED")]
    assert set(scheduler.observe([FIRST, SECOND])) == {"ty-2"}
    opened.set()
    assert answered.wait(30)
    commands.queue = []
    time[0] += 5
    monkeypatch.setattr(limit, 30)
    observed = scheduler.observe([FIRST, SECOND])
    assert {tag: each.state for tag, each in observed.items()} == {"ty-1": "ended"}, "the other one was not asked about"
    time[0] += 5
    assert {each.state for each in scheduler.observe([FIRST, SECOND]).values()} == {"ended"}


def test_a_slow_accounting_does_not_interrupt_an_absence(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scheduler.observe([FIRST])["ty-1"].state == "absent"
    monkeypatch.setattr("service.scheduler.slurm.late_answers._BRIEF_SECONDS", 0.01)
    opened, query = threading.Event(), commands.sacct

    def slow(**selection: Any) -> list[Row] | None:
        opened.wait(30)
        return query(**selection)

    monkeypatch.setattr(commands, "sacct", slow)
    time[0] += 5
    observed = scheduler.observe([FIRST, SECOND])
    assert {tag: each.state for tag, each in observed.items()} == {"ty-1": "absent"}, "of the other nothing is known"
    opened.set()


def test_a_job_that_the_service_cancelled_needs_no_canceller(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue = [row(FIRST, "CANCELLED"), row(SECOND, "CANCELLED")]
    commands.without_slurmdbd = True
    observed = scheduler.observe([replace(FIRST, is_stopping=True), SECOND])
    assert [observed[tag].end_state for tag in ("ty-1", "ty-2")] == ["cancelled", "cancelled"]
    assert (commands.ids, commands.nodes) == ([["2"]], ["node1"])


def test_a_job_submitted_since_the_last_poll_is_pending(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue = [row(FIRST, "RUNNING")]
    scheduler.observe([FIRST])
    assert scheduler.observe([FIRST, SECOND])["ty-2"].state == "pending"
    assert commands.queue_queries == 1


def test_without_accounting_queued_jobs_are_observed(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue, commands.accounting = [row(FIRST, "RUNNING")], False
    observed = scheduler.observe([FIRST, SECOND])
    assert {tag: one.state for tag, one in observed.items()} == {"ty-1": "running"}, "and of the other nothing is known"


def test_slurm_is_polled_without_jobs_after_a_failure(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    commands.controller = False
    with pytest.raises(SchedulerUnavailableError):
        scheduler.observe([FIRST])
    time[0] += 5
    with pytest.raises(SchedulerUnavailableError):
        scheduler.observe([])
    commands.controller = True
    time[0] += 5
    assert scheduler.observe([]) == {}
    time[0] += 5
    scheduler.observe([])
    assert commands.queue_queries == 3, "nothing is asked about nothing"


@pytest.mark.parametrize("planted", ["pipe", "link"])
def test_a_pipe_or_link_as_claim_file_does_not_block(
    scheduler: SlurmScheduler, commands: FakeCommands, planted: str, tmp_path: Path
) -> None:
    if planted == "pipe":
        os.mkfifo(tmp_path / "claim.json")
    else:
        (tmp_path / "claim.json").symlink_to("/dev/zero")
    commands.queue = [row(FIRST, "PENDING")]
    assert scheduler.find("ty-1", tmp_path) == ["1"]


def test_many_forgotten_jobs_are_queried_in_batches(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    """Those that the accounting does not know either stay, and keep the others from no answer."""
    known = [SubmittedJob(f"ty-{number}", str(number), NOWHERE) for number in range(67_000_000, 67_025_000)]
    commands.past = [row(one, "COMPLETED") for one in known[-100:]]
    states: dict[str, str] = {}
    for tick in range(3):
        observed = scheduler.observe(known)
        assert len(commands.ids) == tick + 1, "one question a tick, whatever their number"
        assert len(",".join(commands.ids[-1])) < 128 * 1024 - len("--jobs="), "the longest argument that Linux takes"
        states |= {tag: one.state for tag, one in observed.items()}
        assert len(observed) < len(known), "of those not asked about nothing is known"
        time[0] += 5
    assert len(states) == len(known)
    assert [states[one.tag] for one in known[-100:]] == ["ended"] * 100
    assert set(states.values()) == {"absent", "ended"}
