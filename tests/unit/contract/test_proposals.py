"""Differences of a proposed change, and their application."""

from typing import Any

import pytest

from trainyard.contract.proposals import (
    apply_changes,
    differences,
    document_differences,
    meaning_of,
    spec_text,
    start_of_fork,
)
from trainyard.contract.spec.reference import reference
from trainyard.contract.spec.spec_diff import flatten
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, parse_spec
from trainyard.contract.wire.jobs import ProposedChange, SpecChange

JOB = "job_" + "0" * 26


@pytest.fixture
def spec() -> TrainingSpec:
    return parse_spec(
        {
            "task": "causal_lm",
            "epochs": 2,
            "model": {"source": "builtin", "name": "gpt"},
            "data": {"source": "builtin", "name": "stdlib"},
            "optimizer": {"name": "adamw", "lr": 0.1},
        }
    )


def as_request(changes: list[SpecChange]) -> list[ProposedChange]:
    return [ProposedChange.model_validate(one.model_dump(exclude={"meaning"})) for one in changes]


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer.lr": 0.01},
        {"optimizer.lr": 0.01, "batch.micro_size": 4, "strategy": "fsdp", "fsdp.cpu_offload": True},
        {"steps": 9},
        {"profile": {"start_step": 3}},
        {"lora_rank": 8, "optimizer.clip_norm": None},
    ],
)
def test_applied_differences_are_all_differences(spec: TrainingSpec, fields: dict[str, Any]) -> None:
    start = start_of_fork(spec, JOB, 7)
    changes = differences(spec, {**fields, **start})
    changed, stale = apply_changes(spec, as_request(changes))
    assert stale == []
    shown = {change.field for change in changes}
    differing = {one.field for one in document_differences(dump_spec(spec), dump_spec(parse_spec(changed)))}
    assert {path for path in differing if not any(path == one or path.startswith(f"{one}.") for one in shown)} == set()
    assert changed["resume_from"] == f"{JOB}:7"


def test_other_length_removes_the_former_one(spec: TrainingSpec) -> None:
    changes = differences(spec, {"steps": 9})
    assert [(one.field, one.before, one.after) for one in changes] == [("steps", None, 9), ("epochs", 2, None)]


def test_change_of_another_value_is_stale(spec: TrainingSpec) -> None:
    change = ProposedChange(field="optimizer.lr", before=0.2, after=0.02)
    _, (stale,) = apply_changes(spec, [change])
    assert (stale.field, stale.before, stale.now) == ("optimizer.lr", 0.2, 0.1)
    _, missing = apply_changes(spec, [ProposedChange(field="no.such.field", before=1, after=2)])
    assert [one.now for one in missing] == [None]


def test_every_field_has_a_meaning(spec: TrainingSpec) -> None:
    page = " ".join(reference().split())
    for path in flatten(dump_spec(spec)):
        text = meaning_of(path).rstrip(".").replace("|", "\\|")
        assert text in page, path
    assert meaning_of("optimizer.lr")
    assert meaning_of("lora_rank") == "Rank of the LoRA adapters."
    assert meaning_of("no.such.field") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "absent"), ("bf16", "bf16"), ("", '""'), (1e-05, "1e-05"), (True, "true"), ([1, "ä"], '[1, "ä"]')],
)
def test_a_value_is_written_as_in_a_spec(value: object, text: str) -> None:
    assert spec_text(value) == text
