"""Whether a run stalled before in the same way."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import Failure, FinishRecord
from worker.launcher.repeated_failures import stalled_as_before

TYPE = "DifferentCollectives"


def finish(attempt: AttemptLayout, execution: int, type_: str, step: int) -> None:
    attempt.root.mkdir(parents=True, exist_ok=True)
    failure = Failure(type=type_, message="no rank made progress")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    record = FinishRecord(execution=execution, reason="stalled", step=step, failure=failure, time=now)
    attempt.finish(execution).write_text(record.model_dump_json())


@pytest.mark.parametrize(
    ("type_", "step", "expected"),
    [(TYPE, 0, True), (TYPE, 7, True), ("Stalled", 7, False), (None, 7, False)],
)
def test_same_stall_without_a_later_step(tmp_path: Path, type_: str | None, step: int, expected: bool) -> None:
    run = RunLayout(tmp_path)
    if type_:
        finish(run.attempt("1-a1"), 1, type_, step)
        run.attempt("1-a1").finish(9).write_text("{broken")
    assert stalled_as_before(run.attempt("2-a2"), 2, TYPE) is expected


def test_run_that_got_further_may_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunLayout(tmp_path)
    finish(run.attempt("1-a1"), 1, TYPE, 7)
    monkeypatch.setattr("worker.launcher.repeated_failures.last_step", lambda *_: 8)
    assert not stalled_as_before(run.attempt("2-a2"), 2, TYPE)
