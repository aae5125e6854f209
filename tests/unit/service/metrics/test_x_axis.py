"""The x-axes of curves: seconds of training and tokens."""

import math

import pytest

from service.core.errors import ConflictError
from service.metrics.x_axis import ExecutionSpan, StepTime, check_token_axis, token_axis, training_seconds

SECOND = 1_000_000


def span(execution: int, resumed: int, first: tuple[int, float], last: tuple[int, float]) -> ExecutionSpan:
    """Times in seconds."""
    return ExecutionSpan(execution, resumed, *(StepTime(step, round(at * SECOND)) for step, at in (first, last)))


def test_time_before_first_point_is_estimated_from_time_per_step() -> None:
    seconds = training_seconds([span(1, 0, (10, 105.0), (100, 150.0))])
    assert seconds(10, 1, 105 * SECOND) == 5.0
    assert seconds(100, 1, 150 * SECOND) == 50.0


def test_gaps_and_repeated_steps_are_excluded() -> None:
    spans = [span(1, 0, (1, 100.0), (40, 139.0)), span(2, 40, (41, 9000.0), (60, 9019.0))]
    seconds = training_seconds(spans)
    assert [seconds(40, 1, 139 * SECOND), seconds(41, 2, 9000 * SECOND), seconds(60, 2, 9019 * SECOND)] == [40, 41, 60]


def test_steps_between_last_point_and_checkpoint_are_included() -> None:
    spans = [span(1, 0, (10, 10.0), (30, 30.0)), span(2, 35, (40, 502.5), (50, 507.5))]
    assert training_seconds(spans)(40, 2, round(502.5 * SECOND)) == 37.5


def test_single_point_uses_the_time_per_step_before_it() -> None:
    spans = [span(1, 0, (10, 10.0), (20, 20.0)), span(2, 20, (30, 900.0), (30, 900.0))]
    assert training_seconds(spans)(30, 2, 900 * SECOND) == 30.0
    assert training_seconds([span(1, 0, (5, 7.0), (5, 7.0))])(5, 1, 7 * SECOND) == 0.0


def test_time_is_never_negative() -> None:
    assert training_seconds([span(1, 0, (1, 10.0), (2, 11.0))])(0, 1, 5 * SECOND) == 0.0


def test_tokens_between_two_reports_are_interpolated() -> None:
    tokens = token_axis([(10, 1000.0), (20, 3000.0)])
    assert [tokens(step, 1, 0) for step in (0, 1, 10, 15, 20, 22)] == [0, 100, 1000, 2000, 3000, 3400]


def test_without_reported_tokens_there_is_no_coordinate() -> None:
    assert token_axis([])(3, 1, 0) is None


@pytest.mark.parametrize("total", [math.nan, math.inf, -math.inf, 1e300, -5.0, 10.0])
def test_impossible_number_of_tokens_is_ignored(total: float) -> None:
    assert token_axis([(1, 100.0), (2, total), (3, 300.0)])(2, 1, 0) == 200


def test_image_task_has_no_token_axis() -> None:
    with pytest.raises(ConflictError, match="trains on examples") as refused:
        check_token_axis("job_1", {"task": "image_classification"}, reported=False)
    assert (refused.value.param, refused.value.code) == ("x", "no_tokens")


def test_task_that_reports_tokens_has_a_token_axis() -> None:
    check_token_axis("job_1", {"task": "custom"}, reported=True)
    check_token_axis("job_1", {"task": "causal_lm"}, reported=False)
