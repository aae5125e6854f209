"""Where the points of a curve lie, read over seconds of training or over tokens."""

import pytest

from service.core.errors import ConflictError
from service.metrics.x_axis import Placed, Stretch, tokens_seen, training_seconds

SECOND = 1_000_000


def stretch(execution: int, resumed: int, first: tuple[int, float], last: tuple[int, float]) -> Stretch:
    """Times in seconds."""
    return Stretch(execution, resumed, *(Placed(step, round(at * SECOND)) for step, at in (first, last)))


def test_the_clock_begins_at_step_nought_at_the_runs_own_pace() -> None:
    seconds = training_seconds([stretch(1, 0, (10, 105.0), (100, 150.0))])
    assert seconds(10, 1, 105 * SECOND) == 5.0
    assert seconds(100, 1, 150 * SECOND) == 50.0


def test_a_gap_between_executions_does_not_count_and_neither_does_what_was_done_again() -> None:
    parts = [stretch(1, 0, (1, 100.0), (40, 139.0)), stretch(2, 40, (41, 9000.0), (60, 9019.0))]
    seconds = training_seconds(parts)
    assert [seconds(40, 1, 139 * SECOND), seconds(41, 2, 9000 * SECOND), seconds(60, 2, 9019 * SECOND)] == [40, 41, 60]


def test_what_lies_between_the_last_point_and_the_checkpoint_counts() -> None:
    parts = [stretch(1, 0, (10, 10.0), (30, 30.0)), stretch(2, 35, (40, 502.5), (50, 507.5))]
    assert training_seconds(parts)(40, 2, round(502.5 * SECOND)) == 37.5


def test_one_point_alone_goes_at_the_pace_before() -> None:
    parts = [stretch(1, 0, (10, 10.0), (20, 20.0)), stretch(2, 20, (30, 900.0), (30, 900.0))]
    assert training_seconds(parts)(30, 2, 900 * SECOND) == 30.0
    assert training_seconds([stretch(1, 0, (5, 7.0), (5, 7.0))])(5, 1, 7 * SECOND) == 0.0


def test_time_never_runs_backwards_below_nought() -> None:
    assert training_seconds([stretch(1, 0, (1, 10.0), (2, 11.0))])(0, 1, 5 * SECOND) == 0.0


def test_tokens_are_examples_by_the_mean_length_of_a_row() -> None:
    spec = {"task": "causal_lm", "batch": {"size": 8}}
    latest = {"perf/tokens_per_second": 5120.0, "perf/examples_per_second": 10.0}
    assert tokens_seen("job_1", spec, latest)(3, 1, 0) == 3 * 8 * 512


def test_before_the_first_report_nothing_is_known() -> None:
    assert tokens_seen("job_1", {"task": "causal_lm", "batch": {"size": 8}}, {})(3, 1, 0) is None
    odd = {"perf/tokens_per_second": "NaN", "perf/examples_per_second": 10.0}
    assert tokens_seen("job_1", {"task": "causal_lm", "batch": {"size": 8}}, odd)(3, 1, 0) is None


def test_images_are_no_tokens() -> None:
    with pytest.raises(ConflictError, match="trains on examples") as refused:
        tokens_seen("job_1", {"task": "image_classification", "batch": {"size": 8}}, {})
    assert (refused.value.param, refused.value.code) == ("x", "no_tokens")
