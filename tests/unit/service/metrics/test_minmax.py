"""Min-max downsampling keeps the extremes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.minmax import downsample_minmax


def curve(values: list[float], max_points: int) -> list[tuple[int, float]]:
    """Return the selected points of a curve with one value per step."""
    return [(index, values[index]) for index in downsample_minmax(range(len(values)), values, max_points)]


def test_short_curve_is_unchanged() -> None:
    values = [3.0, 1.0, 2.0]
    assert curve(values, 10) == list(enumerate(values))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=30, max_size=400), st.integers(10, 60))
def test_extremes_and_ends_are_selected(values: list[float], max_points: int) -> None:
    selected = curve(values, max_points)
    assert len(selected) <= max(max_points, 4)
    assert [step for step, _ in selected] == sorted({step for step, _ in selected})
    assert selected[0] == (0, values[0])
    assert selected[-1] == (len(values) - 1, values[-1])
    assert max(value for _, value in selected) == max(values)
    assert min(value for _, value in selected) == min(values)


def test_nan_is_always_selected() -> None:
    values = [1.0] * 1000
    values[517] = math.nan
    assert any(math.isnan(value) for _, value in curve(values, 20))


def test_largest_finite_value_is_selected_next_to_an_infinity() -> None:
    values = [1.0] * 1000
    values[500:503] = [-math.inf, 7.0, 8.0]
    selected = dict(curve(values, 20))
    assert (selected[500], selected[502]) == (-math.inf, 8.0)


def test_buckets_divide_steps_and_not_points() -> None:
    steps = [*range(100), 1000, 1010, 1020]
    values = [float(-step) for step in range(100)] + [5.0, 6.0, 7.0]
    assert {steps[index] for index in downsample_minmax(steps, values, 12)} >= {0, 1000, 1010, 1020}
