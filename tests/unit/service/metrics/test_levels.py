"""Which pieces of steps are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.metrics.downsampling.levels import (
    ENDLESS,
    LEVELS,
    RAW,
    choose_level,
    cover,
    visible,
    width_shift,
)

STEP = st.integers(0, 2_000_000)


@given(STEP, STEP, st.integers(RAW, LEVELS - 1), st.integers(0, 3))
def test_pieces_hold_each_wanted_step_once_and_no_other(first: int, length: int, level: int, shift: int) -> None:
    pieces = cover(1, first, first + length, level, shift)
    place = first
    for piece in pieces:
        assert piece.first == place
        assert piece.last >= piece.first
        place = piece.last + 1
    assert place == first + length + 1


@given(STEP, STEP, st.integers(0, LEVELS - 1), st.integers(0, 3))
def test_buckets_are_read_whole(first: int, length: int, level: int, shift: int) -> None:
    for piece in cover(1, first, first + length, level, shift):
        if piece.level != RAW:
            width = 1 << width_shift(piece.level, shift)
            assert piece.first % width == 0
            assert (piece.last + 1) % width == 0


def test_an_open_end_takes_the_last_bucket_as_it_is() -> None:
    (piece,) = cover(1, 0, ENDLESS, 2, 0)
    assert (piece.level, piece.first, piece.last) == (2, 0, ENDLESS)


def test_a_later_execution_hides_what_it_does_again() -> None:
    assert sorted(visible({1: 0, 2: 100, 3: 50}, 0, ENDLESS)) == [(1, 0, 50), (2, 0, 50), (3, 0, ENDLESS)]
    assert list(visible({1: 0}, 10, 5)) == []


@pytest.mark.parametrize(("span", "level"), [(1000, RAW), (40_000, 0), (1_000_000, 1), (10**10, LEVELS - 1)])
def test_the_level_has_buckets_enough(span: int, level: int) -> None:
    assert choose_level(span, 0, 2000) == level
