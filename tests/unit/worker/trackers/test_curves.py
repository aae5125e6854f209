"""Which steps the points of trackers have, which tracker a curve is from, and what is stated of the rest."""

import itertools
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.tracker_spool import events, points
from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers import left_out
from worker.trackers.journal import Journal, TrackedValue

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Logged = Iterable[tuple[int | None, float]]


def values(name: str, logged: Logged) -> list[TrackedValue]:
    times = (BEGIN + timedelta(seconds=second) for second in itertools.count())
    return [TrackedValue(name, value, step, time) for (step, value), time in zip(logged, times, strict=False)]


def counted_names(layout: AttemptLayout) -> list[str]:
    names: list[str] = json.loads((RunLayout(layout.root.parent.parent).root / "counted_metrics.json").read_bytes())
    return names


@pytest.mark.parametrize("tracker", ["mlflow", "tensorboard"])
@pytest.mark.parametrize("per_request", [1, 2, 3, 10])
def test_given_steps_stay_after_a_repeated_first_step(layout: AttemptLayout, tracker: str, per_request: int) -> None:
    journal = Journal(layout, 0)
    logged = values("acc", [(0, 9.0), (0, 7.0), (0, 8.0), (100, 1.0), (200, 2.0), (0, 3.0)])
    for start in range(0, len(logged), per_request):
        journal.log(1, tracker, [*logged[start : start + per_request], *values("other", [(start, 0.0)])])
    journal.close()
    acc = [(step, value) for name, step, value in points(layout) if name == "acc"]
    assert acc == [(0, 9.0), (0, 8.0), (100, 1.0), (200, 2.0), (0, 3.0)]
    assert counted_names(layout) == []


def test_of_a_repeated_first_step_the_newest_value_stays(layout: AttemptLayout) -> None:
    journal = Journal(layout, 0)
    first, newest, last, given = values("acc", [(0, 1.0), (0, 2.0), (0, 3.0), (10, 4.0)])
    for value in (newest, last, first, given):
        journal.log(1, "mlflow", [value])
    assert points(layout) == [("acc", 0, 2.0), ("acc", 0, 3.0), ("acc", 10, 4.0)]


def test_a_given_step_ends_the_count_of_an_earlier_attempt(layout: AttemptLayout) -> None:
    journal = Journal(layout, 0)
    journal.log(1, "mlflow", values("acc", [(0, 1.0), (0, 2.0), (5, 3.0)]))
    journal.log(1, "mlflow", values("loss", [(0, float(value)) for value in range(3)]))
    journal.close()
    assert counted_names(layout) == ["loss"]
    later = RunLayout(layout.root.parent.parent).attempt("2-b")
    later.root.mkdir()
    journal = Journal(later, 0)
    journal.log(2, "mlflow", values("loss", [(0, 5.0), (100, 6.0)]))
    journal.close()
    assert points(later, 2) == [("loss", 0, 5.0), ("loss", 100, 6.0)]
    assert counted_names(layout) == []


def test_points_whose_step_cannot_be_stored_are_left_out_and_counted(layout: AttemptLayout) -> None:
    journal = Journal(layout, 0)
    journal.log(1, "mlflow", values("neg", [(step, float(step)) for step in (5, 3, -2, -1, 0)]))
    journal.log(1, "tensorboard", values("early", [(step, float(step)) for step in (-1, 0, 1)]))
    journal.log(1, "mlflow", values("far", [(2**53, 1.0), (2**53 + 1, 2.0)]))
    journal.close()
    assert points(layout) == [
        *(("neg", step, step) for step in (5, 3, 0)),
        *(("early", step, step) for step in (0, 1)),
        ("far", 2**53, 1.0),
    ]
    (event,) = events(layout)
    counts = [("neg", 2), ("early", 1), ("far", 1)]
    named = [{"metric": name, "count": count} for name, count in counts]
    assert (event.type, event.data) == ("report_adjusted", {"kind": "step", "metrics": 3, "left_out": named})
    assert event.message.startswith("4 points of 'neg' and 2 other metrics: left out")


THREE = {"wandb": 0, "mlflow": 200, "tensorboard": 100}


@pytest.mark.parametrize("order", list(itertools.permutations(THREE)))
def test_one_tracker_has_the_curve_whichever_reports_first(layout: AttemptLayout, order: tuple[str, ...]) -> None:
    journal = Journal(layout, 0)
    for start in (0, 10):
        for tracker in order:
            logged = [(step, float(THREE[tracker] + step)) for step in range(start, start + 10)]
            journal.log(1, tracker, values("loss", logged))
    journal.close()
    assert points(layout) == [("loss", step, step) for step in range(20)]
    (event,) = events(layout)
    named = [{"metric": "loss", "count": 40}]
    assert event.data == {"kind": "two_trackers", "metrics": 1, "left_out": named}


@pytest.mark.parametrize("order", list(itertools.permutations(THREE, 2)))
def test_values_that_two_trackers_agree_about_are_not_stated(layout: AttemptLayout, order: tuple[str, ...]) -> None:
    """TensorBoard stores 32 bits, and the trackers may count steps differently."""
    journal = Journal(layout, 0)
    for tracker in order:
        step = 10 if tracker == "wandb" else 1
        losses = [math.nan, math.inf, 0.1, 1e300, -0.0]
        journal.log(1, tracker, values("loss", [(step * at, loss) for at, loss in enumerate(losses)]))
    journal.close()
    assert events(layout) == []


def test_values_of_a_long_spool_are_counted_without_a_comparison(
    layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_out, "_MAX_BYTES", 100)
    monkeypatch.setattr(left_out, "_MAX_VALUES", 2)
    journal = Journal(layout, 0)
    for tracker in ("wandb", "mlflow"):
        journal.log(1, tracker, values("loss", [(step, 1.0 + step) for step in range(3)]))
    journal.log(2, "mlflow", values("loss", [(1, 2.0)]))
    (event,) = events(layout)
    assert event.data["left_out"] == [{"metric": "loss", "count": 3}]
    journal.close()
    assert len(events(layout)) == 1


def test_a_summary_ends_no_curve_of_another_tracker(layout: AttemptLayout) -> None:
    journal = Journal(layout, 0)
    journal.log(1, "mlflow", values("loss", [(1, 1.0), (2, 2.0)]))
    journal.log(1, "wandb_summary", values("loss", [(9, 2.0)]))
    assert points(layout) == [("loss", 1, 1.0), ("loss", 2, 2.0)]
