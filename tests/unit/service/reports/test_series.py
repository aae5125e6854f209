"""Thinning keeps what a reader must see."""

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from service.reports.series import thin


@dataclass(frozen=True)
class P:
    step: int
    value: float


def curve(values: list[float]) -> list[P]:
    return [P(step, value) for step, value in enumerate(values)]


def test_few_points_stay_as_they_are() -> None:
    points = curve([3.0, 1.0, 2.0])
    assert thin(points, 10) == points


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=30, max_size=400), st.integers(10, 60))
def test_extremes_and_ends_survive(values: list[float], most: int) -> None:
    points = curve(values)
    kept = thin(points, most)
    assert len(kept) <= max(most, 4)
    assert [p.step for p in kept] == sorted({p.step for p in kept})
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert max(p.value for p in kept) == max(values)
    assert min(p.value for p in kept) == min(values)


def test_a_nan_is_never_thinned_away() -> None:
    values = [1.0] * 1000
    values[517] = math.nan
    assert any(math.isnan(p.value) for p in thin(curve(values), 20))
