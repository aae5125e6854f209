"""The communication check detects wrong values, and writes a table otherwise."""

import json

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of
from worker.comm_check.plan import OPERATIONS, SIZES


def checked(tmp_path, ranks, faults=()):
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, {"gpus": ranks}, template="comm_check")
        attempt = run.run(faults=faults)
    return run, attempt, service


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_operation_is_right_and_timed(tmp_path, ranks):
    run, attempt, service = checked(tmp_path, ranks)
    assert finish_of(attempt, 1).reason == "completed", attempt.rank_log(0).read_text()[-3000:]
    report = json.loads((run.layout.artifacts / "comm_check.json").read_text())
    assert (report["world_size"], report["backend"], report["not_in_backend"]) == (ranks, "gloo", {})
    names = ["world"] if ranks == 2 else ["world", "lower half", "upper half", "even ranks", "odd ranks"]
    assert list(report["groups"]) == names
    measured = {(row["operation"], row["group"], row["size_bytes"]) for row in report["operations"]}
    sizes = SIZES["cpu"]
    timed = {(o, g, s) for o in OPERATIONS for g in names for s in sizes if o != "barrier"}
    assert measured == timed | {("barrier", name, 0) for name in names}
    assert all(row["seconds"] > 0 for row in report["operations"] + report["pairs"])
    assert len(report["pairs"]) == 2 * ranks * (ranks - 1) / 2
    (event,) = [event for event in service.events.values() if event["type"] == "comm_check"]
    assert event["data"]["slowest_pair"] == report["slowest_pair"]
    assert {row["group"] for row in event["data"]["operations"]} == {"world"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"operation": "all_reduce_max", "rank": 1},
            "all_reduce_max in world: rank 1 got 7 instead of 6 at element 17",
        ),
        (
            {"operation": "scatter", "rank": 2, "group": "even ranks"},
            "scatter in even ranks: rank 2 got",
        ),
        (
            {"operation": "send", "rank": 3, "from": 1},
            "send and recv in pair 1-3: rank 3 got 5 instead of 4 at element 17",
        ),
        (
            {"operation": "all_gather", "rank": 0, "group": "lower half"},
            "all_gather in lower half: rank 0 got",
        ),
    ],
)
def test_a_wrong_value_fails_the_job_with_operation_group_and_rank(tmp_path, fault, message):
    _, attempt, service = checked(tmp_path, 4, [{"kind": "corrupt", **fault}])
    (record,) = service.finishes
    assert (record.reason, record.failure.type, record.restarts) == ("error", "TrainingError", 0)
    assert record.failure.message.startswith(message)
    assert not (attempt.root.parents[1] / "artifacts").exists()


@pytest.mark.slow
def test_unsupported_operation_is_reported_and_does_not_fail(tmp_path):
    run, attempt, service = checked(tmp_path, 2, [{"kind": "absent", "operation": "reduce_scatter"}])
    assert finish_of(attempt, 1).reason == "completed"
    report = json.loads((run.layout.artifacts / "comm_check.json").read_text())
    assert report["not_in_backend"] == {"world": ["reduce_scatter"]}
    assert "reduce_scatter" not in {row["operation"] for row in report["operations"]}
    (event,) = [event for event in service.events.values() if event["type"] == "comm_check"]
    assert event["message"].endswith("the backend gloo lacks reduce_scatter")
