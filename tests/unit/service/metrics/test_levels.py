"""Plans of reads: which ranges of steps are read from which level."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.levels import (
    LEVELS,
    MAX_STEP,
    NO_LEVEL,
    bucket_bits,
    choose_level,
    plan_reads,
    visible_ranges,
)

STEP = st.integers(0, 2_000_000)


@given(STEP, STEP, st.integers(NO_LEVEL, LEVELS - 1), st.integers(0, 3))
def test_reads_cover_each_requested_step_exactly_once(first: int, length: int, level: int, shift: int) -> None:
    reads = plan_reads(1, first, first + length, level, shift)
    position = first
    for read in reads:
        assert read.first == position
        assert read.last >= read.first
        position = read.last + 1
    assert position == first + length + 1


@given(STEP, STEP, st.integers(0, LEVELS - 1), st.integers(0, 3))
def test_buckets_are_read_as_a_whole(first: int, length: int, level: int, shift: int) -> None:
    for read in plan_reads(1, first, first + length, level, shift):
        if read.level != NO_LEVEL:
            width = 1 << bucket_bits(read.level, shift)
            assert read.first % width == 0
            assert (read.last + 1) % width == 0


def test_open_end_reads_the_last_bucket_at_the_same_level() -> None:
    (read,) = plan_reads(1, 0, MAX_STEP, 2, 0)
    assert (read.level, read.first, read.last) == (2, 0, MAX_STEP)


def test_later_execution_hides_the_steps_it_repeats() -> None:
    assert sorted(visible_ranges({1: 0, 2: 100, 3: 50}, 0, MAX_STEP)) == [(1, 0, 50), (2, 0, 50), (3, 0, MAX_STEP)]
    assert list(visible_ranges({1: 0}, 10, 5)) == []


@pytest.mark.parametrize(("span", "level"), [(1000, NO_LEVEL), (40_000, 0), (1_000_000, 1), (10**10, LEVELS - 1)])
def test_level_has_enough_buckets_for_the_points(span: int, level: int) -> None:
    assert choose_level(span, 0, 2000) == level
