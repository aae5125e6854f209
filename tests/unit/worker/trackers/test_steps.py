"""Which step a point has, and where an execution resumed."""

from trainyard.contract.wire.reports import UNKNOWN_STEP
from worker.trackers.steps import ExecutionSteps, MetricHistory

HISTORY = {"loss": MetricHistory(540, 501), "epoch_loss": MetricHistory(5, 5)}


def test_first_execution_starts_at_0_and_takes_the_steps_of_the_program() -> None:
    steps = ExecutionSteps(1)
    assert [steps.assign("loss", step) for step in (0, 10, 5, 20)] == [0, 10, 5, 20]
    assert (steps.resumed_from, steps.highest) == (0, 20)


def test_metric_without_steps_is_counted() -> None:
    steps = ExecutionSteps(1)
    assert [steps.assign("loss", None) for _ in range(3)] == [0, 1, 2]
    assert [steps.assign("acc", 0) for _ in range(3)] == [0, 1, 2]
    assert steps.counted == {"loss", "acc"}


def test_a_given_step_ends_the_count() -> None:
    steps = ExecutionSteps(2, HISTORY, {"loss", "acc"})
    assert [steps.assign("loss", step) for step in (0, 0, 600, 0)] == [501, 502, 600, 0]
    assert steps.assign("acc", 7) == 7
    assert (steps.counted, steps.counted_changed) == (set(), True)


def test_a_tracker_that_gives_all_steps_may_repeat_0() -> None:
    steps = ExecutionSteps(1)
    assert [steps.assign("loss", step, counts_zeros=False) for step in (0, 0, 1, 0, 0)] == [0, 0, 1, 0, 0]
    assert steps.counted == set()


def test_resume_step_comes_from_a_metric_that_counts_steps() -> None:
    steps = ExecutionSteps(2, HISTORY)
    assert steps.assign("epoch_loss", 5) == 5
    assert steps.assign("new", 3) == 3
    assert steps.resumed_from == UNKNOWN_STEP
    steps.assign("loss", 501)
    steps.assign("loss", 400)
    assert steps.resumed_from == 500


def test_counted_metric_continues_after_the_checkpoint() -> None:
    steps = ExecutionSteps(2, HISTORY, {"loss"})
    assert [steps.assign("loss", 0) for _ in range(2)] == [501, 502]
    assert steps.resumed_from == 500


def test_execution_without_earlier_points_starts_at_its_first() -> None:
    steps = ExecutionSteps(3)
    steps.assign("loss", 8)
    assert steps.resumed_from == 7
