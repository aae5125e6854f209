"""The limit of a wait without progress, from the run's own waits."""

import pytest

from trainyard.progress_file import ProgressRecord
from worker.launcher.stall_limits import COMPILING, TRAINING, LearnedLimits, group_of


def learned(group: str, *waits: float) -> LearnedLimits:
    limits = LearnedLimits()
    for seconds in waits:
        limits.learn(group, seconds)
    return limits


def record(rank: int, phase: str, **changes: bool) -> ProgressRecord:
    return ProgressRecord(rank=rank, execution=1, marks=1, step=1, phase=phase, **changes)


@pytest.mark.parametrize(
    ("group", "waits", "limit"),
    [
        (TRAINING, [2.0] * 9, None),
        (TRAINING, [2.0] * 10, 20.0),
        (TRAINING, [5.0] * 10, 40.0),
        (TRAINING, [2.0] * 99 + [19.0], 20.0),
        (TRAINING, [2.0] * 95 + [15.0] * 5, 120.0),
        ("evaluating", [3.0] * 4, None),
        ("evaluating", [3.0] * 5, 24.0),
        ("saving", [2.0] * 5, 120.0),
        ("saving", [30.0] * 5, 240.0),
        (COMPILING, [2.0] * 50, None),
    ],
)
def test_limit_follows_the_waits(group: str, waits: list[float], limit: float | None) -> None:
    assert learned(group, *waits).limit(group) == limit


def test_wrong_suspicion_raises_the_limit_above_its_wait() -> None:
    limits = learned(TRAINING, *[2.0] * 10, 60.0)
    assert limits.limit(TRAINING) == pytest.approx(90.0)
    assert learned(TRAINING, *[2.0] * 200, 60.0).limit(TRAINING) == 20.0, "a single pause among many waits"


def test_limit_is_stated_first_and_when_it_doubles() -> None:
    limits = learned(TRAINING, *[2.0] * 9)
    assert limits.changed(TRAINING) is None
    limits.learn(TRAINING, 2.0)
    assert (limits.changed(TRAINING), limits.changed(TRAINING)) == (20.0, None)
    limits.learn(TRAINING, 4.5)
    assert limits.changed(TRAINING) is None
    limits.learn(TRAINING, 6.0)
    assert limits.changed(TRAINING) == 48.0


@pytest.mark.parametrize(
    ("records", "group"),
    [
        ([record(0, "forward"), record(1, "backward")], TRAINING),
        ([record(0, "forward"), record(1, "evaluating")], "evaluating"),
        ([record(0, "saving"), record(1, "evaluating")], "saving"),
        ([record(0, "forward"), record(1, "forward", compiling=True)], COMPILING),
        ([record(0, "a new phase")], TRAINING),
    ],
)
def test_longest_phase_of_the_ranks_decides(records: list[ProgressRecord], group: str) -> None:
    assert group_of(records) == group
