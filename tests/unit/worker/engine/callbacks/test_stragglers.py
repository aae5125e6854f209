"""Detection of ranks that slow all others down."""

import pytest

from worker.engine.callbacks.stragglers import Straggler, StragglerDetector


def add(detector: StragglerDetector, *rank_seconds: float, step: float = 1.0, elapsed: float = 30.0) -> list[Straggler]:
    return detector.add(rank_seconds, step, elapsed)


@pytest.mark.fault_scenario(52)
def test_a_slow_rank_is_reported_once_after_a_minute() -> None:
    detector = StragglerDetector()
    assert add(detector, 0.2, 0.2, 0.8, 0.2) == []
    assert add(detector, 0.2, 0.2, 0.8, 0.2) == [Straggler(2, 4.0)]
    assert add(detector, 0.2, 0.2, 0.8, 0.2, elapsed=600.0) == []


def test_of_two_ranks_the_other_is_the_measure() -> None:
    detector = StragglerDetector()
    assert add(detector, 0.1, 0.4, elapsed=60.0) == [Straggler(1, 4.0)]


def test_an_interruption_starts_the_minute_again() -> None:
    detector = StragglerDetector()
    for slow in (0.8, 0.3, 0.8):
        assert add(detector, 0.2, 0.2, slow) == []


def test_differences_that_cost_the_others_little_are_ignored() -> None:
    detector = StragglerDetector()
    assert add(detector, 0.001, 0.001, 0.01, step=1.0, elapsed=600.0) == []
    assert add(detector, 0.0, 0.0, 0.0, step=0.0, elapsed=0.0) == []


def test_several_stragglers_are_reported_together() -> None:
    detector = StragglerDetector()
    assert add(detector, 0.125, 0.5, 0.125, 1.0, 0.125, elapsed=61.0) == [Straggler(1, 4.0), Straggler(3, 8.0)]
