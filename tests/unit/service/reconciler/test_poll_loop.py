"""The pauses between ticks, and errors that must not stop the loop."""

import time
from typing import cast

import pytest

from service.core.observability import ServiceMetrics
from service.reconciler import poll_loop
from service.reconciler.poll_loop import ReconcileLoop, hint_cooldown, pause_seconds
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
def test_pause_grows_while_quiet_and_after_errors(busy: bool, quiet: int, errors: int, expected: float) -> None:
    assert pause_seconds(busy, quiet, errors, 1.0, 60.0) == expected


def test_pause_never_exceeds_the_maximum() -> None:
    assert pause_seconds(True, 500, 0, 1.0, 1.0) == 1.0


@pytest.mark.parametrize(("quiet", "expected"), [(0, 1.0), (1, 2.0), (5, 2.0), (100, 2.0), (101, 60.0)])
def test_pause_stays_short_while_an_attempt_is_to_end(quiet: int, expected: float) -> None:
    assert pause_seconds(True, quiet, 0, 1.0, 60.0, ends_attempts=True) == expected


@pytest.mark.parametrize(("cpu_seconds", "expected"), [(0.0, 0.05), (0.01, 0.05), (0.2, 0.6), (30.0, 2.0)])
def test_hint_cooldown_grows_with_cpu_time_of_a_tick(cpu_seconds: float, expected: float) -> None:
    assert hint_cooldown(cpu_seconds) == pytest.approx(expected)


class Failing:
    """A reconciler whose database fails with an unexpected error."""

    def __init__(self) -> None:
        self.renewals = 0
        self.loop = ReconcileLoop(cast(Reconciler, self), ServiceMetrics(), 1.0, 1.0)

    def renew(self) -> None:
        self.renewals += 1
        if self.renewals == 2:
            self.loop._stopping.set()
        raise RuntimeError("cannot execute UPDATE in a read-only transaction")


def test_lease_renewal_is_retried_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_loop, "_RENEW_SECONDS", 0.0)
    failing = Failing()
    failing.loop._tick_started = time.monotonic()
    failing.loop._renew_lease()
    assert failing.renewals == 2


def test_failing_idle_work_does_not_stop_the_loop() -> None:
    def idle_work() -> bool:
        raise RuntimeError("a bug")

    loop = Failing().loop
    loop.idle_work = idle_work
    loop._run_idle_work(busy=False, errors=0)
