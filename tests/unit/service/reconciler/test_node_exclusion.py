"""Attributing failures to nodes, and the nodes that the next attempt excludes."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from service.reconciler.evidence import Evidence
from service.reconciler.node_exclusion import (
    MAX_EXCLUDED,
    Fault,
    affordable,
    failed_node,
    next_excluded,
    node_fault,
)
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import Observation
from trainyard.contract.wire.reports import NODE_NOT_READY, Failure, FinishRecord


def finish(node: str | None) -> FinishRecord:
    failure = Failure(type="NodeVanished", message="gone", node=node)
    return FinishRecord(execution=1, reason="node_failure", failure=failure, time=datetime(2026, 1, 1, tzinfo=UTC))


def finish_without_node() -> FinishRecord:
    return FinishRecord(execution=1, reason="error", time=datetime(2026, 1, 1, tzinfo=UTC))


def ended(**changes: Any) -> Observation:
    return Observation("ended", "Slurm: NODE_FAIL", **({"nodes": ("n1",), "end_state": "node_failure"} | changes))


def _evidence(record: FinishRecord | None, observation: Observation | None, startup_error: str = "") -> Evidence:
    unclaimed = UnclaimedAttempt(startup_error=startup_error)
    return Evidence(observation=observation, exit_record=record, claimed=record is not None, unclaimed=unclaimed)


def _failed_node(
    record: FinishRecord | None,
    observation: Observation | None,
    excluded: Sequence[str] = (),
    startup_error: str = "",
    stalled_before: Collection[str] = (),
) -> str | None:
    return failed_node(_evidence(record, observation, startup_error), excluded, stalled_before)


def test_the_exit_record_names_the_node() -> None:
    assert _failed_node(finish("n2"), ended()) == "n2"
    assert _failed_node(finish("n2; rm"), ended()) is None


def test_slurms_node_failure_counts_with_any_exit_record() -> None:
    preempted = FinishRecord(execution=1, reason="preempted", time=datetime(2026, 1, 1, tzinfo=UTC))
    assert _failed_node(preempted, ended()) == "n1"
    assert _failed_node(preempted, ended(nodes=("n[1-2]",))) is None
    assert _failed_node(preempted, ended(end_state="failed")) is None


def test_a_worker_that_did_not_start_is_evidence_of_its_node() -> None:
    failed = ended(end_state="failed")
    assert _failed_node(None, ended()) == "n1"
    assert _failed_node(None, failed, startup_error="/opt/python: not found") == "n1"
    assert _failed_node(finish_without_node(), failed, startup_error="/opt/python: not found") is None


def test_a_job_that_did_not_launch_is_evidence_of_its_node() -> None:
    launch = Observation("ended", "Slurm: FAILED, JobLaunchFailure", ("n1",), end_state="launch_failed")
    prolog = Observation("ended", "Slurm: CANCELLED", ("n1",), end_state="cancelled", prolog_failed=True)
    for observation in (launch, prolog):
        assert _failed_node(None, observation) == "n1"
        assert _failed_node(None, observation, ["n2", "n3"]) is None, "then the job is probably at fault"


@pytest.mark.parametrize(
    ("record", "observation", "error", "kind"),
    [
        (None, ended(end_state="launch_failed"), "", "launch_failed"),
        (None, ended(end_state="cancelled", prolog_failed=True), "", "prolog_failed"),
        (None, ended(end_state="failed"), "/opt/python: not found", "not_started"),
        (None, ended(), "", "node_failure"),
        (finish("n1"), ended(end_state="failed"), "", "reported"),
        (finish("n1"), ended(), "", "node_failure"),
    ],
)
def test_how_a_node_failed_an_attempt(
    record: FinishRecord | None, observation: Observation, error: str, kind: str
) -> None:
    fault = node_fault(_evidence(record, observation, error))
    assert isinstance(fault, Fault)
    assert (fault.node, fault.kind) == ("n1", kind)
    assert ("gone" if kind == "reported" else "Slurm: NODE_FAIL") in fault.message


def test_a_check_of_the_launcher_counts_for_nodes_of_the_allocation_alone() -> None:
    failure = Failure(type=NODE_NOT_READY, message="did not start on node n2: no driver", node="n2")
    record = FinishRecord(execution=1, reason="node_failure", failure=failure, time=datetime(2026, 1, 1, tzinfo=UTC))
    for nodes, kind in ((("n[1-4]",), "not_started"), (("n1",), "reported")):
        assert node_fault(_evidence(record, ended(end_state="completed", nodes=nodes))) == Fault(
            "n2", kind, failure.message
        )


@pytest.mark.parametrize("end_state", ["completed", "failed", "out_of_memory", "cancelled", "preempted", "time_limit"])
def test_other_ends_are_no_fault_of_a_node(end_state: Any) -> None:
    assert node_fault(_evidence(None, ended(end_state=end_state))) is None


@pytest.mark.parametrize(
    "error",
    [
        "",
        "FileNotFoundError: [Errno 2] No such file or directory: '/runs/job_1/attempts/1/launch.json'",
        "1 validation error for LaunchDocument: /runs/job_1/attempts/1",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
        "OSError: [Errno 30] Read-only file system: '/runs'",
    ],
)
def test_what_the_shared_filesystem_causes_is_no_evidence(error: str) -> None:
    assert _failed_node(None, ended(end_state="failed"), startup_error=error) is None


def test_repeated_failures_are_not_attributed_to_more_nodes() -> None:
    failed, error = ended(end_state="failed"), "/opt/python: not found"
    assert _failed_node(None, failed, ["n8"], error) == "n1"
    assert _failed_node(None, failed, ["n8", "n9"], error) is None
    assert _failed_node(None, ended(), ["n8", "n9"]) == "n1", "Slurm itself reports it"
    assert _failed_node(finish("n2"), ended(), ["n8", "n9"]) == "n2"


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": ("n[1-2]",)},
        {"nodes": ()},
        {"end_state": "preempted"},
        {"end_state": "cancelled"},
        {"end_state": None},
    ],
)
def test_otherwise_no_node_has_failed(changes: dict[str, Any]) -> None:
    assert _failed_node(None, ended(**changes)) is None
    assert _failed_node(None, None) is None


def test_exclusions_grow_and_drop_the_oldest() -> None:
    assert next_excluded(["a", "b"], "c") == ["a", "b", "c"]
    assert next_excluded(["a", "b"], "a") == ["b", "a"]
    assert next_excluded(["a"], None) == ["a"]
    assert next_excluded([str(n) for n in range(MAX_EXCLUDED)], "new") == ["1", "2", "3", "4", "5", "6", "7", "new"]


def stalled(host: str | None) -> FinishRecord:
    failure = Failure(type="Stalled", message="no rank made progress", rank=3, host=host)
    return FinishRecord(execution=1, reason="stalled", failure=failure, time=datetime(2026, 1, 1, tzinfo=UTC))


def test_the_node_of_a_stalled_rank_counts_when_it_is_named_again() -> None:
    assert _failed_node(stalled("n2"), ended(end_state="completed")) is None
    assert _failed_node(stalled("n2"), ended(end_state="completed"), stalled_before={"n1"}) is None
    assert _failed_node(stalled("n2"), ended(end_state="completed"), stalled_before={"n1", "n2"}) == "n2"
    assert _failed_node(stalled("n2; rm"), ended(end_state="completed"), stalled_before={"n2; rm"}) is None
    assert _failed_node(stalled(None), ended(end_state="completed"), stalled_before={"n2"}) is None


@pytest.mark.parametrize(
    ("names", "fixed", "partitions", "count", "expected"),
    [
        (["a", "b"], [], [], 1, ["a", "b"]),
        (["a", "b"], [], [()], 1, ["a", "b"]),
        (["a", "b"], [], [("a", "b")], 1, ["a"]),
        (["a", "b"], ["b"], [("a", "b")], 1, ["b"]),
        (["n1", "n2"], ["n[3-4]"], [("n1", "n2", "n3", "n4")], 1, ["n1"]),
        (["n1"], ["n2,n[3-4]"], [("n1", "n2", "n3", "n4")], 1, []),
        (["a"], [], [("a", "b")], 2, []),
        (["a"], [], [("a", "b"), ("b", "c")], 2, ["a"]),
        (["a", "b", "c"], [], [("a", "b"), ("c",)], 1, ["a", "b"]),
        (["elsewhere"], [], [("a",)], 1, ["elsewhere"]),
    ],
)
def test_excluded_nodes_leave_enough_for_the_job(
    names: list[str], fixed: list[str], partitions: list[tuple[str, ...]], count: int, expected: list[str]
) -> None:
    assert affordable(names, fixed, partitions, count) == expected
