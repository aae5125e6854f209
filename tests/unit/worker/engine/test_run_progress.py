"""The time that a run will still take, and the phases that it reports."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract.wire.reports import Progress
from worker.engine.run_progress import MeanSeconds, RunProgress, evaluation_estimate, occurrences, seconds_left
from worker.reporting.reporter import NullReporter


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20) | st.none())
def test_occurrences_are_those_of_the_trainer(after: int, total: int, every: int | None) -> None:
    due = [step for step in range(after + 1, total + 1) if step == total or (every is not None and step % every == 0)]
    assert occurrences(after, total, every) == len(due)


def test_all_parts_count() -> None:
    parts = {
        "steps": 10,
        "step_seconds": 2.0,
        "evaluations": 3,
        "evaluation_seconds": 5.0,
        "saves": 2,
        "save_seconds": 1.5,
    }
    assert seconds_left(**parts) == 38.0  # type: ignore[arg-type]
    assert seconds_left(**parts, current=4.0) == 42.0  # type: ignore[arg-type]
    assert seconds_left(**{**parts, "step_seconds": float("nan")}) is None  # type: ignore[arg-type]
    assert evaluation_estimate(300, 10, 0.5) == pytest.approx(5.0)


def test_newer_durations_weigh_more() -> None:
    mean = MeanSeconds()
    assert mean.value is None
    for seconds in (4.0, 8.0):
        mean.add(seconds)
    assert mean.value == 6.0


class Recorder(NullReporter):
    def __init__(self) -> None:
        self.reports: list[tuple[int, Progress | None]] = []

    def points(self, step: int, values: Any, progress: Progress | None = None) -> None:
        assert values == {}
        self.reports.append((step, progress))


class Run:
    """A run of 100 steps of a second, with an evaluation of 400 examples and a checkpoint each 50 steps."""

    def __init__(self, **changes: Any) -> None:
        self.now = 0.0
        self.reporter = Recorder()
        given = {
            "total_steps": 100,
            "epoch_of": lambda step: step // 50,
            "seconds_per_step": lambda: 1.5,
            "training_seconds": lambda: 1.0,
            "evaluate_every": 50,
            "evaluates": True,
            "save_every": 50,
            "held_out": 400,
            "batch_size": 10,
        }
        self.progress = RunProgress(self.reporter, clock=lambda: self.now, **{**given, **changes})

    def left(self, step: int) -> float | None:
        return self.progress.at(step).seconds_left

    def phase(self, name: Any, step: int, seconds: float) -> None:
        self.progress.begin(name, step)
        self.now += seconds
        self.progress.end()


def test_evaluations_and_checkpoints_count_as_measured() -> None:
    run = Run()
    assert run.left(0) == pytest.approx(100 + 2 * 400 / 10 / 3)  # before one was measured
    run.phase("evaluating", 50, 30.0)
    run.phase("saving", 50, 4.0)
    assert run.left(50) == pytest.approx(50 + 30 + 4)
    run.phase("evaluating", 100, 30.0)
    assert run.left(100) == pytest.approx(4.0)
    run.phase("saving", 100, 4.0)
    assert run.left(100) == 0.0


def test_a_run_that_resumes_does_not_count_what_it_did_before() -> None:
    run = Run()
    run.progress.start(60)
    assert run.left(60) == pytest.approx(40 + 400 / 10 / 3)


def test_evaluation_is_reported_with_what_is_left_of_it() -> None:
    run = Run(evaluate_every=None, save_every=None)
    run.progress.begin("evaluating", 100)
    run.now += 0.5
    run.progress.evaluated(20, 400)
    assert run.reporter.reports == [], "a short phase is not reported"
    run.now += 9.5
    run.progress.evaluated(100, 400)
    [(step, progress)] = run.reporter.reports
    assert progress is not None
    assert (step, progress.phase, progress.phase_done, progress.phase_total) == (100, "evaluating", 100, 400)
    assert progress.seconds_left == pytest.approx(30.0)
    run.now += 1.0
    run.progress.evaluated(110, 400)
    assert len(run.reporter.reports) == 1, "at intervals only"
    run.progress.end()
    assert run.reporter.reports[-1][1].phase == "training"  # type: ignore[union-attr]


def test_long_phases_are_reported_at_once_and_exports_have_no_estimate() -> None:
    run = Run()
    run.phase("saving", 50, 20.0)
    assert run.reporter.reports == []
    run.progress.begin("saving", 100)
    assert run.reporter.reports[-1][1].phase == "saving"  # type: ignore[union-attr]
    run.progress.end()
    run.progress.begin("exporting", 100, report=True)
    exported = run.reporter.reports[-1][1]
    assert exported is not None
    assert (exported.phase, exported.seconds_left) == ("exporting", None)


def test_nothing_is_estimated_before_a_step_was_measured() -> None:
    assert Run(training_seconds=lambda: None).left(0) is None
