"""What pages say of a job."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import yaml

from service.web.pages import job_view
from trainyard.contract.wire.jobs import JobResource, JobStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(**changes: Any) -> JobResource:
    fields = {
        "id": "job_1",
        "name": "one",
        "status": "running",
        "status_message": "running on node1",
        "desired": "run",
        "created_by": "ada",
        "created_at": NOW,
        "updated_at": NOW,
        "spec": {"gpus": 2, "strategy": "fsdp", "precision": "bf16", "lora_rank": 8},
        "run_directory": "/runs/job_1",
    }
    return JobResource.model_validate(fields | changes)


def test_every_status_has_a_tone_and_a_group() -> None:
    statuses = set(get_args(JobStatus))
    assert set(job_view.TONES) == statuses
    assert {status for _, members in job_view.GROUPS for status in members} == statuses


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "Running on node1; no steps yet."),
        ({"spec": {"task": "script"}}, "Running on node1."),
        (
            {"progress": {"step": 1200, "total_steps": 4000, "eta_seconds": 75.0}},
            "Running on node1: step 1\u202f200 of 4\u202f000, about 1 min 15 s left.",
        ),
        ({"status": "pending", "status_message": "waiting for 2 of 2 local slots"}, "Waiting for 2 of 2 local slots."),
        ({"status": "queued", "status_message": ""}, "Queued."),
    ],
)
def test_status_sentence_covers_progress_and_waiting(changes: dict[str, Any], text: str) -> None:
    assert job_view.sentence(job(**changes)) == text


def test_a_row_shows_why_until_there_is_progress() -> None:
    waiting = job_view.row(job(status="pending", status_message="behind another"))
    assert (waiting.why, waiting.steps, waiting.fraction) == ("behind another", "", 0.0)
    going = job_view.row(job(progress={"step": 1, "total_steps": 4}, metrics={"train/loss": "NaN"}))
    assert (going.why, going.steps, going.fraction, going.loss) == ("", "1 / 4", 0.25, "NaN")
    assert going.strategy_label == "fsdp · bf16 · LoRA 8"


def test_a_job_without_steps_is_nowhere_rather_than_an_error() -> None:
    assert job_view.fraction_done(job(progress={"step": 0, "total_steps": 0})) == 0.0


def test_a_failure_names_the_rank_that_failed_first() -> None:
    error = {"rank": 3, "host": "node2", "type": "ValueError", "message": "no", "hint": "Try yes.", "traceback": "T"}
    assert job_view.error_view(job(error=error)) == job_view.ErrorView(
        "First failure: rank 3 on node2", "ValueError: no", "Try yes.", "T"
    )
    assert job_view.error_view(job(error={"type": "E", "message": "m"})).where == "Failed"
    assert job_view.error_view(job()) == job_view.ErrorView()


def test_runtime_is_shown_when_the_job_has_ended() -> None:
    over = job(status="succeeded", started_at=NOW, finished_at=NOW + timedelta(minutes=90))
    assert job_view.runtime(over) == "1 h 30 min"
    assert job_view.runtime(job(started_at=NOW)) == "–"  # noqa: RUF001


def test_the_table_gets_no_more_of_a_job_than_it_shows() -> None:
    fields = job_view.brief(job(metrics={"train/loss": 1.0, "train/lr": 0.1}))
    assert fields["metrics"] == {"train/loss": 1.0}
    assert set(fields["spec"]) == {"gpus", "strategy", "precision", "lora_rank"}
    assert "run_directory" not in fields


def test_the_spec_can_be_submitted_again() -> None:
    assert yaml.safe_load(job_view.spec_text(job())) == job().spec
