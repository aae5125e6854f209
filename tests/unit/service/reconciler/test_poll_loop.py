"""How long to wait between two ticks, and what does not end them."""

import time
from typing import cast

import pytest

from service.core.observability import ServiceMetrics
from service.reconciler import poll_loop as ticking
from service.reconciler.poll_loop import ReconcileLoop, breath, pause
from service.reconciler.reconciler import Reconciler


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


class Failing:
    """A reconciler whose database fails in a way that nobody has thought of."""

    def __init__(self) -> None:
        self.renewals = 0
        self.loop = ReconcileLoop(cast(Reconciler, self), ServiceMetrics(), 1.0, 1.0)

    def renew(self) -> None:
        self.renewals += 1
        if self.renewals == 2:
            self.loop._stopping.set()
        raise RuntimeError("cannot execute UPDATE in a read-only transaction")


def test_a_lease_that_was_not_renewed_once_is_renewed_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking, "_RENEW_SECONDS", 0.0)
    failing = Failing()
    failing.loop._tick_started = time.monotonic()
    failing.loop._keep()
    assert failing.renewals == 2


def test_spare_work_that_fails_ends_no_ticks() -> None:
    def spare() -> bool:
        raise RuntimeError("a bug")

    loop = Failing().loop
    loop.spare = spare
    loop._use_spare_time(busy=False, errors=0)
