"""Events that a launcher had not read when it was killed are read by that of the next attempt."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import metric_name
from trainyard.contract.wire.reports import UNKNOWN_STEP, MetricsBatch
from trainyard.contract.wire.spool import parse_spool
from worker.core.program_output import enter_work, take_output
from worker.trackers.event_remainder import EventRemainder
from worker.trackers.journal import Journal, TrackedValue

BEGIN = 1_790_000_000.0
"""When step 0 is logged; each step takes a second."""


@pytest.fixture
def attempts(tmp_path: Path) -> list[AttemptLayout]:
    run = RunLayout(tmp_path / "job")
    layouts = [run.attempt(f"{number}-a") for number in (1, 2, 3)]
    for layout in layouts:
        layout.code.mkdir(parents=True)
    run.checkpoints.mkdir()
    return layouts


def write(layout: AttemptLayout, steps: range, tag: str = "loss", folder: str = "runs", late: float = 0.0) -> None:
    with SummaryWriter(str((layout.code if layout.code.exists() else layout.work) / folder)) as writer:
        for step in steps:
            writer.add_scalar(tag, step / 4, step, walltime=BEGIN + step + late)


def store(
    layout: AttemptLayout, execution: int, steps: range, name: str = "loss", late: float = 0.0, prefix: str = ""
) -> None:
    times = {step: datetime.fromtimestamp(BEGIN + step + late, UTC) for step in steps}
    journal = Journal(layout, 0)
    values = [TrackedValue(prefix + name, step / 4, step, times[step], prefix) for step in steps]
    journal.log(execution, "tensorboard", values)
    journal.close()


def save(layout: AttemptLayout, step: float, name: str = "state") -> None:
    path = RunLayout(layout.root.parent.parent).checkpoints / name
    path.write_text("")
    os.utime(path, (BEGIN + step, BEGIN + step))


def begin(layout: AttemptLayout) -> None:
    take_output(layout, ())
    enter_work(layout)


def made_up(layout: AttemptLayout, execution: int = 2) -> list[tuple[str, int, float]]:
    """Return the points that the launcher of an attempt adds before its program starts."""
    remainder = EventRemainder.find(layout)
    if remainder is None:
        return []
    journal = Journal(layout, 0)
    journal.add_unread(execution, "tensorboard", remainder.values)
    journal.close()
    path = layout.tracker_spool(execution, 0)
    batches = [record.body() for record in parse_spool(path)] if path.exists() else []
    assert all(isinstance(batch, MetricsBatch) and batch.resumed_from_step == UNKNOWN_STEP for batch in batches)
    return [(point.key, point.step, point.value) for batch in batches for point in batch.points]


def test_events_between_the_last_reading_and_the_checkpoint_are_added(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 13))
    store(attempts[0], 1, range(1, 9))
    save(attempts[0], 10.5)
    assert made_up(attempts[1]) == [("loss", 9, 2.25), ("loss", 10, 2.5)]


def test_nothing_is_added_where_all_was_read(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 13))
    store(attempts[0], 1, range(1, 13))
    save(attempts[0], 10.5)
    assert made_up(attempts[1]) == []


def test_all_is_added_where_nothing_was_read(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 4))
    save(attempts[0], 2.5)
    assert made_up(attempts[1]) == [("loss", 1, 0.25), ("loss", 2, 0.5)]


def test_without_a_checkpoint_the_program_begins_again(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 4))
    assert made_up(attempts[1]) == []
    assert made_up(attempts[0], 1) == []


def test_what_a_resume_has_replaced_is_not_added(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 40))
    store(attempts[0], 1, range(1, 40))
    write(attempts[1], range(20, 31), late=100)
    store(attempts[1], 2, range(20, 29), late=100)
    save(attempts[1], 130.5)
    assert made_up(attempts[2], 3) == [("loss", 29, 7.25), ("loss", 30, 7.5)]


def test_a_metric_of_another_tracker_is_left_to_it(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 9), late=0.5)
    store(attempts[0], 1, range(1, 9))
    save(attempts[0], 20)
    assert made_up(attempts[1]) == []


def test_names_are_those_of_the_follower(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 5), tag="acc\n1")
    write(attempts[0], range(1, 5), tag="loss", folder="runs/valid")
    store(attempts[0], 1, range(1, 4), name="acc\n1")
    store(attempts[0], 1, range(1, 4), prefix="valid/")
    save(attempts[0], 20)
    assert sorted(made_up(attempts[1])) == [(metric_name("acc\n1"), 4, 1.0), ("valid/loss", 4, 1.0)]


def test_event_files_in_the_checkpoint_folder_are_no_checkpoints(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 9))
    store(attempts[0], 1, range(1, 5))
    save(attempts[0], 6.5)
    save(attempts[0], 60, name="events.out.tfevents.1.host.2.0")
    assert made_up(attempts[1]) == [("loss", 5, 1.25), ("loss", 6, 1.5)]


def test_damaged_files_are_passed_over(attempts: list[AttemptLayout]) -> None:
    write(attempts[0], range(1, 5))
    store(attempts[0], 1, range(1, 4))
    (attempts[0].code / "events.out.tfevents.1.host.2.0").write_bytes(b"no record" * 9)
    save(attempts[0], 20)
    assert made_up(attempts[1]) == [("loss", 4, 1.0)]


def test_moved_files_are_read_but_not_of_older_attempts(attempts: list[AttemptLayout]) -> None:
    begin(attempts[0])
    write(attempts[0], range(1, 8), folder="runs/first")
    attempts[1].launch.write_text("")
    begin(attempts[1])
    write(attempts[1], range(5, 13), folder="runs/second", late=100.0)
    store(attempts[1], 2, range(5, 9), late=100.0)
    save(attempts[1], 111.5)
    begin(attempts[2])
    assert made_up(attempts[2], 3) == [("loss", step, step / 4) for step in (9, 10, 11)]
