"""Observing jobs in Slurm: no answer is taken for that to another question."""

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
    """A controller and an accounting that say what the test has set."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Row] = []
        self.controller = self.accounting = True
        self.asked = 0
        self.past: list[Row] = []
        self.ids: list[Sequence[str]] = []

    def squeue(self, *, everyone: bool = False) -> tuple[list[Row], list[Row]]:
        self.asked += 1
        if not self.controller:
            raise SchedulerUnavailableError("squeue ended with 1")
        return self.queue, []

    def sacct(self, *, ids: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row] | None:
        if not self.accounting:
            raise SchedulerUnavailableError("sacct ended with 1")
        self.ids.append(ids)
        return [row for row in self.past if row.id in ids]


def row(known: SubmittedJob, state: str) -> Row:
    return Row(known.scheduler_id, known.tag, state, "None", "node1")


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


def test_the_end_of_a_double_says_nothing_of_the_job_that_is_watched_in_its_place(
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


def test_what_was_handed_over_since_the_last_answer_waits(scheduler: SlurmScheduler, commands: FakeCommands) -> None:
    commands.queue = [row(FIRST, "RUNNING")]
    scheduler.observe([FIRST])
    assert scheduler.observe([FIRST, SECOND])["ty-2"].state == "pending"
    assert commands.asked == 1


def test_without_the_accounting_the_queue_still_tells_of_what_is_in_it(
    scheduler: SlurmScheduler, commands: FakeCommands
) -> None:
    commands.queue, commands.accounting = [row(FIRST, "RUNNING")], False
    seen = scheduler.observe([FIRST, SECOND])
    assert {tag: one.state for tag, one in seen.items()} == {"ty-1": "running"}, "and of the other nothing is known"


def test_a_failure_is_over_when_slurm_answers_though_nothing_is_left_to_ask_about(
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
    assert commands.asked == 3, "nothing is asked about nothing"


@pytest.mark.parametrize("planted", ["pipe", "link"])
def test_what_a_job_leaves_in_the_place_of_its_claim_does_not_hold_the_service(
    scheduler: SlurmScheduler, commands: FakeCommands, planted: str, tmp_path: Path
) -> None:
    if planted == "pipe":
        os.mkfifo(tmp_path / "claim.json")
    else:
        (tmp_path / "claim.json").symlink_to("/dev/zero")
    commands.queue = [row(FIRST, "PENDING")]
    assert scheduler.find("ty-1", tmp_path) == ["1"]


def test_more_forgotten_jobs_than_fit_a_question_are_asked_about_in_turn(
    scheduler: SlurmScheduler, commands: FakeCommands, time: list[float]
) -> None:
    """Those that the accounting does not know either stay, and keep the others from no answer."""
    known = [SubmittedJob(f"ty-{number}", str(number), NOWHERE) for number in range(67_000_000, 67_025_000)]
    commands.past = [row(one, "COMPLETED") for one in known[-100:]]
    told: dict[str, str] = {}
    for tick in range(3):
        seen = scheduler.observe(known)
        assert len(commands.ids) == tick + 1, "one question a tick, whatever their number"
        assert len(",".join(commands.ids[-1])) < 128 * 1024 - len("--jobs="), "the longest argument that Linux takes"
        told |= {tag: one.state for tag, one in seen.items()}
        assert len(seen) < len(known), "of those not asked about nothing is known"
        time[0] += 5
    assert len(told) == len(known)
    assert [told[one.tag] for one in known[-100:]] == ["ended"] * 100
    assert set(told.values()) == {"absent", "ended"}
