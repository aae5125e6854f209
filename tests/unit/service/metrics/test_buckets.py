"""What stands for a bucket."""

import math

from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.buckets import Kept, keep, merge, spacing, stand_outs


def point(step: int, value: float | None, special: int = 0) -> Kept:
    return Kept(step, value, special, step)


def test_first_last_smallest_largest_and_one_odd_value_are_kept() -> None:
    values = [3.0, 1.0, 2.0, None, 9.0, 4.0, 5.0]
    points = [point(step, value, 1 if value is None else 0) for step, value in enumerate(values)]
    assert [one.step for one in keep(points)] == [0, 1, 3, 4, 6]


@given(
    st.dictionaries(st.integers(0, 300), st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.just(1.0))
)
def test_of_new_points_those_are_chosen_that_would_be_kept(values: dict[int, float | None]) -> None:
    series = [point(step, value, 2 if value is None else 0) for step, value in sorted(values.items())]
    buckets = [[one for one in series if one.step >> 6 == bucket] for bucket in range(5)]
    arrivals = [(1, 1, *one, 9) for one in series]
    assert stand_outs(arrivals, 6) == [one for bucket in buckets for one in keep(bucket)]


POINTS = st.dictionaries(st.integers(0, 300), st.floats(allow_nan=False, allow_infinity=False), min_size=1)


@given(POINTS, POINTS)
def test_folding_in_two_goes_keeps_the_extremes_of_all(first: dict[int, float], second: dict[int, float]) -> None:
    # A step comes once: a second report of it does not reach the table of points.
    later = {step: value for step, value in second.items() if step not in first}
    one, _ = merge([], [point(s, v) for s, v in first.items()], 6)
    two, gone = merge(one, [point(s, v) for s, v in later.items()], 6)
    there = {p.step: p for p in one}
    for lost in gone:
        del there[lost.step]
    there.update((p.step, p) for p in two)
    every = {**first, **later}
    for bucket in {step >> 6 for step in every}:
        values = [v for s, v in every.items() if s >> 6 == bucket]
        shown = [p.value for p in there.values() if p.step >> 6 == bucket]
        assert (min(shown), max(shown)) == (min(values), max(values))  # type: ignore[type-var]
        assert all(math.isfinite(v) for v in shown if v is not None)


def test_spacing_is_that_of_the_steps() -> None:
    assert spacing([1, 2, 3, 4]) == 0
    assert spacing(range(0, 1000, 10)) == 3
    assert spacing([7]) == 0
