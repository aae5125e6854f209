"""Launch documents and reports of another release."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.world import SPEC
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.launch import PROTOCOL, LaunchDocument
from trainyard.contract.wire.reports import FinishRecord, Heartbeat, MetricsBatch

TIME = "2026-01-01T00:00:00Z"


def document(**changes: Any) -> dict[str, Any]:
    spec = dump_spec(parse_spec(SPEC))
    identity = {"job_id": "job_1", "attempt_id": "a1", "attempt": 1, "tag": "ty-main-a1", "execution": 1}
    size = {"max_restarts": 0, "ranks_per_node": 1, "service_url": "http://service"}
    return {**identity, **size, "spec": spec, **changes}


def read(values: dict[str, Any]) -> LaunchDocument:
    return LaunchDocument.model_validate_json(json.dumps(values))


def test_a_document_of_a_later_release_is_read_without_its_new_fields() -> None:
    later = document(new_setting=7)
    later["spec"] |= {"new_section": None, "new_list": []}
    later["spec"]["batch"] |= {"new_option": None}
    assert read(later) == read(document())


def test_a_new_field_that_the_job_uses_is_no_document_of_this_release() -> None:
    later = document()
    later["spec"] |= {"new_section": {"size": 3}, "new_list": []}
    with pytest.raises(ValidationError, match="new_section"):
        read(later)


def test_a_later_protocol_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"protocol 2, but this worker knows 1: .* install the release"):
        read(document(protocol=PROTOCOL + 1))


def test_a_document_of_an_earlier_release_has_the_first_protocol() -> None:
    assert read(document()).protocol == 1


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Heartbeat, {"execution": 1}),
        (MetricsBatch, {"execution": 1, "resumed_from_step": 0, "points": []}),
        (FinishRecord, {"execution": 1, "reason": "completed", "time": TIME}),
    ],
)
def test_reports_of_a_later_release_are_read(model: Any, fields: dict[str, Any]) -> None:
    assert model.model_validate({**fields, "new_field": {"a": 1}}) == model.model_validate(fields)


@pytest.mark.parametrize(
    ("size", "launch", "processes", "is_distributed"),
    [
        ((1, 1), None, 1, True),
        ((1, 4), None, 4, True),
        ((1, 1), {"distributed": False}, 1, False),
        ((1, 4), {"per": "node"}, 1, True),
        ((1, 1), {"mode": "exec"}, 1, False),
        ((1, 4), {"mode": "exec"}, 4, True),
        ((1, 4), {"mode": "exec", "per": "job"}, 1, False),
        ((2, 4), {"mode": "exec", "per": "node"}, 1, True),
        ((1, 1), {"mode": "exec", "distributed": True}, 1, True),
    ],
)
def test_processes_of_a_program(
    size: tuple[int, int], launch: dict[str, Any] | None, processes: int, is_distributed: bool
) -> None:
    nodes, ranks = size
    spec = {"version": 1, "task": "script", "argv": ["/a.py"], "gpus": nodes * ranks, "launch": launch}
    resources = {"gpus_per_node": ranks}
    made = LaunchDocument(
        **document(nodes=nodes, ranks_per_node=ranks, spec=dump_spec(parse_spec({**spec, "resources": resources})))
    )
    assert (made.processes_per_node, made.is_distributed) == (processes, is_distributed)
