"""Selection of the samples of a bucket."""

from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.buckets import (
    Sample,
    estimate_spacing_bits,
    merge_samples,
    sample_buckets,
    sample_levels,
    sample_new_points,
    select_extremes,
)
from service.metrics.downsampling.levels import bucket_bits


def point(step: int, value: float | None, special: int = 0) -> Sample:
    return Sample(step, value, special, step)


def test_first_last_extremes_and_one_non_finite_value_are_selected() -> None:
    values = [3.0, 1.0, 2.0, None, 9.0, 4.0, 5.0]
    points = [point(step, value, 1 if value is None else 0) for step, value in enumerate(values)]
    assert [one.step for one in select_extremes(points)] == [0, 1, 3, 4, 6]


@given(
    st.dictionaries(st.integers(0, 300), st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.just(1.0))
)
def test_new_points_are_sampled_like_whole_buckets(values: dict[int, float | None]) -> None:
    series = [point(step, value, 2 if value is None else 0) for step, value in sorted(values.items())]
    buckets = [[one for one in series if one.step >> 6 == bucket] for bucket in range(5)]
    new_points = [(1, 1, *one, 9) for one in series]
    assert sample_new_points(new_points, 6) == [one for bucket in buckets for one in select_extremes(bucket)]


POINTS = st.dictionaries(st.integers(0, 300), st.floats(allow_nan=False, allow_infinity=False), min_size=1)


@given(POINTS, POINTS)
def test_merging_twice_keeps_the_extremes_of_all_points(first: dict[int, float], second: dict[int, float]) -> None:
    later = {step: value for step, value in second.items() if step not in first}
    one = merge_samples([], [point(s, v) for s, v in first.items()], 6)
    two = merge_samples(one, [point(s, v) for s, v in later.items()], 6)
    changed = {step >> 6 for step in later}
    assert sorted([*(p for p in one if p.step >> 6 not in changed), *two]) == sample_buckets(
        sorted(point(s, v) for s, v in {**first, **later}.items()), 6
    )


@given(POINTS, st.integers(0, 3))
def test_samples_of_a_level_are_those_of_its_points(values: dict[int, float], spacing: int) -> None:
    points = sorted(point(step << 9, value) for step, value in values.items())
    for level, samples in enumerate(sample_levels(points, spacing)):
        assert samples == sample_buckets(points, bucket_bits(level, spacing))


def test_spacing_is_the_median_distance_of_the_steps() -> None:
    assert estimate_spacing_bits([1, 2, 3, 4]) == 0
    assert estimate_spacing_bits(range(0, 1000, 10)) == 3
    assert estimate_spacing_bits([7]) == 0
