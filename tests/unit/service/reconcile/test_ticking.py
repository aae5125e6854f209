"""How long to wait between two ticks."""

import pytest

from service.reconcile.ticking import breath, pause


@pytest.mark.parametrize(
    ("busy", "quiet", "errors", "expected"),
    [
        (True, 0, 0, 1.0),
        (True, 1, 0, 2.0),
        (True, 3, 0, 8.0),
        (True, 500, 0, 60.0),
        (False, 500, 0, 5.0),
        (True, 500, 1, 2.0),
        (True, 0, 500, 60.0),
    ],
)
def test_it_grows_while_nothing_changes_and_while_ticks_fail(
    busy: bool, quiet: int, errors: int, expected: float
) -> None:
    assert pause(busy, quiet, errors, 1.0, 60.0) == expected


def test_a_scheduler_that_is_asked_nothing_over_a_network_is_looked_at_as_often_as_ever() -> None:
    assert pause(True, 500, 0, 1.0, 1.0) == 1.0


@pytest.mark.parametrize(("cpu_seconds", "expected"), [(0.0, 0.05), (0.01, 0.05), (0.2, 0.6), (30.0, 2.0)])
def test_hints_at_every_request_leave_most_of_the_time_to_requests(cpu_seconds: float, expected: float) -> None:
    assert breath(cpu_seconds) == pytest.approx(expected)
