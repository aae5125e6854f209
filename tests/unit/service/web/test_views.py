"""What pages say of a job."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import yaml

from service.web import views
from trainyard.contract.wire.jobs import JobResource, JobStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(**changes: Any) -> JobResource:
    told = {
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
    return JobResource.model_validate(told | changes)


def test_every_status_has_a_look_and_a_group() -> None:
    statuses = set(get_args(JobStatus))
    assert set(views.TONES) == statuses
    assert {status for _, members in views.GROUPS for status in members} == statuses


@pytest.mark.parametrize(
    ("changes", "words"),
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
def test_one_sentence_says_what_it_does_or_why_it_waits(changes: dict[str, Any], words: str) -> None:
    assert views.sentence(job(**changes)) == words


def test_a_row_shows_why_until_there_is_progress() -> None:
    waiting = views.row(job(status="pending", status_message="behind another"))
    assert (waiting.why, waiting.steps, waiting.fraction) == ("behind another", "", 0.0)
    going = views.row(job(progress={"step": 1, "total_steps": 4}, metrics={"train/loss": "NaN"}))
    assert (going.why, going.steps, going.fraction, going.loss) == ("", "1 / 4", 0.25, "NaN")
    assert going.made_of == "fsdp · bf16 · LoRA 8"


def test_a_job_without_steps_is_nowhere_rather_than_an_error() -> None:
    assert views.done(job(progress={"step": 0, "total_steps": 0})) == 0.0


def test_a_failure_names_the_rank_that_failed_first() -> None:
    error = {"rank": 3, "host": "node2", "type": "ValueError", "message": "no", "hint": "Try yes.", "traceback": "T"}
    assert views.broken(job(error=error)) == views.Broken(
        "Rank 3 failed first on node2", "ValueError: no", "Try yes.", "T"
    )
    assert views.broken(job(error={"type": "E", "message": "m"})).where == "Failed"
    assert views.broken(job()) == views.Broken()


def test_how_long_it_ran_is_told_when_it_is_over() -> None:
    over = job(status="succeeded", started_at=NOW, finished_at=NOW + timedelta(minutes=90))
    assert views.ran_for(over) == "1 h 30 min"
    assert views.ran_for(job(started_at=NOW)) == "–"  # noqa: RUF001


def test_the_table_gets_no_more_of_a_job_than_it_shows() -> None:
    told = views.brief(job(metrics={"train/loss": 1.0, "train/lr": 0.1}))
    assert told["metrics"] == {"train/loss": 1.0}
    assert set(told["spec"]) == {"gpus", "strategy", "precision", "lora_rank"}
    assert "run_directory" not in told


def test_the_spec_can_be_submitted_again() -> None:
    assert yaml.safe_load(views.spec_text(job())) == job().spec
