"""The data that the pages of jobs embed."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import service.web
from service.web.pages.jobs import STATUS_GROUPS, group_keys, row_fields
from trainyard.contract.wire.jobs import JobResource, JobStatus
from trainyard.contract.wire.reports import PLAIN_FAILURES

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


def test_each_status_is_in_a_filter_group() -> None:
    assert {status for _, members in STATUS_GROUPS for status in members} == set(get_args(JobStatus))


def test_table_data_has_only_shown_fields() -> None:
    fields = row_fields(job(metrics={"train/loss": 1.0, "train/lr": 0.1}))
    assert fields["metrics"] == {"train/loss": 1.0}
    assert set(fields["spec"]) == {"gpus", "strategy", "precision", "lora_rank"}
    assert "run_directory" not in fields


def test_commas_separate_the_keys_of_groups() -> None:
    assert group_keys("") == []
    assert group_keys("optimizer.lr,tags.a,,b") == ["optimizer.lr", "tags.a,b"]


def test_pages_hide_the_same_types_of_failures() -> None:
    text = Path(service.web.__file__).with_name("static").joinpath("format.js").read_text()
    listed = re.search(r"PLAIN_FAILURES = new Set\(\[(.*?)\]\)", text, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == PLAIN_FAILURES
