"""DownsampleState keeps what a reader must see."""

import math

from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.minmax import thin


def curve(values: list[float], most: int) -> list[tuple[int, float]]:
    """What is left of values one step apart."""
    return [(place, values[place]) for place in thin(range(len(values)), values, most)]


def test_few_points_stay_as_they_are() -> None:
    values = [3.0, 1.0, 2.0]
    assert curve(values, 10) == list(enumerate(values))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=30, max_size=400), st.integers(10, 60))
def test_extremes_and_ends_survive(values: list[float], most: int) -> None:
    kept = curve(values, most)
    assert len(kept) <= max(most, 4)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert kept[0] == (0, values[0])
    assert kept[-1] == (len(values) - 1, values[-1])
    assert max(value for _, value in kept) == max(values)
    assert min(value for _, value in kept) == min(values)


def test_a_nan_is_never_thinned_away() -> None:
    values = [1.0] * 1000
    values[517] = math.nan
    assert any(math.isnan(value) for _, value in curve(values, 20))


def test_beside_an_infinity_the_largest_number_stays() -> None:
    values = [1.0] * 1000
    values[500:503] = [-math.inf, 7.0, 8.0]
    kept = dict(curve(values, 20))
    assert (kept[500], kept[502]) == (-math.inf, 8.0)


def test_buckets_are_of_steps_and_not_of_points() -> None:
    steps = [*range(100), 1000, 1010, 1020]
    values = [float(-step) for step in range(100)] + [5.0, 6.0, 7.0]
    assert {steps[place] for place in thin(steps, values, 12)} >= {0, 1000, 1010, 1020}
