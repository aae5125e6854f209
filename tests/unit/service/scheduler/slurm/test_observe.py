"""Observing jobs in Slurm, with cached and partial answers."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.scheduler.base import SchedulerUnavailableError, SubmittedJob
from service.scheduler.slurm.commands import Row, SlurmCommands
from service.scheduler.slurm.scheduler import SlurmScheduler

NOWHERE = Path("/nowhere")
FIRST, SECOND = SubmittedJob("ty-1", "1", NOWHERE), SubmittedJob("ty-2", "2", NOWHERE)


class FakeCommands(SlurmCommands):
    """A controller and an accounting that return what the test has set."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Row] = []
        self.controller = self.accounting = True
        self.queue_queries = 0
        self.past: list[Row] = []
        self.ids: list[Sequence[str]] = []
        self.reasons: list[str] = []
        self.nodes: list[str] = []

    def node_reasons(self, nodes: str) -> list[str]:
        self.nodes.append(nodes)
        return self.reasons

    def squeue(self, *, everyone: bool = False) -> tuple[list[Row], list[Row]]:
        self.queue_queries += 1
        if not self.controller:
            raise SchedulerUnavailableError("squeue ended with 1")
        return self.queue, []

    def sacct(self, *, ids: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row] | None:
        if not self.accounting:
            raise SchedulerUnavailableError("sacct ended with 1")
        self.ids.append(ids)
        return [row for row in self.past if row.id in ids]


def row(known: SubmittedJob, state: str, detail: str = "None") -> Row:
    return Row(known.scheduler_id, known.tag, state, detail, "node1", uid=os.getuid())


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
    made = SlurmScheduler(poll_seconds=5)
    made._commands = commands
    return made


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


def test_a_failing_prolog_differs_from_a_cancellation(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    commands.queue = [row(FIRST, "CANCELLED"), row(SECOND, "FAILED", "JobLaunchFailure")]
    for reasons, failed in ((["node1 is drained: Prolog error"], True), (["node1 is drained: kernel update"], False)):
        commands.reasons = reasons
        time[0] += 5
        observed = scheduler.observe([FIRST, SECOND])
        assert observed["ty-1"].prolog_failed is failed
        assert ("Prolog error" in observed["ty-1"].message) is failed
        assert observed["ty-2"].ended_as == "launch_failed"


def test_a_cancelled_job_states_by_whom(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.past = [Row("1", "ty-1", "CANCELLED by 1000", "0:15", "node1", uid=os.getuid())]
    assert scheduler.observe([FIRST])["ty-1"].message == "Slurm: CANCELLED by 1000, exit code 0:15"


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
