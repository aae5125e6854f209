"""Attributing failures to nodes, and the nodes that the next attempt excludes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.reconciler.node_exclusion import MAX_EXCLUDED, failed_node, next_excluded
from service.scheduler.base import Observation
from trainyard.contract.wire.reports import Failure, FinishRecord


def finish(node: str | None) -> FinishRecord:
    failure = Failure(type="NodeVanished", message="gone", node=node)
    return FinishRecord(execution=1, reason="node_failure", failure=failure, time=datetime(2026, 1, 1, tzinfo=UTC))


def ended(**changes: Any) -> Observation:
    return Observation("ended", "Slurm: NODE_FAIL", **({"nodes": ("n1",), "ended_as": "node_failure"} | changes))


def test_the_exit_record_names_the_node() -> None:
    assert failed_node(finish("n2"), ended()) == "n2"
    assert failed_node(finish("n2; rm"), ended()) is None


def test_slurms_node_failure_counts_with_any_exit_record() -> None:
    preempted = FinishRecord(execution=1, reason="preempted", time=datetime(2026, 1, 1, tzinfo=UTC))
    assert failed_node(preempted, ended()) == "n1"
    assert failed_node(preempted, ended(nodes=("n[1-2]",))) is None
    assert failed_node(preempted, ended(ended_as="failed")) is None


def test_a_failure_without_a_record_is_attributed_to_the_only_node() -> None:
    assert failed_node(None, ended()) == "n1"
    assert failed_node(None, ended(ended_as="failed")) == "n1"


def test_repeated_failures_are_not_attributed_to_more_nodes() -> None:
    assert failed_node(None, ended(ended_as="failed"), ["n8"]) == "n1"
    assert failed_node(None, ended(ended_as="failed"), ["n8", "n9"]) is None
    assert failed_node(None, ended(), ["n8", "n9"]) == "n1", "Slurm itself says so"
    assert failed_node(finish("n2"), ended(), ["n8", "n9"]) == "n2"


@pytest.mark.parametrize(
    "changes",
    [{"nodes": ("n[1-2]",)}, {"nodes": ()}, {"ended_as": "preempted"}, {"ended_as": "cancelled"}, {"ended_as": None}],
)
def test_otherwise_no_node_has_failed(changes: dict[str, Any]) -> None:
    assert failed_node(None, ended(**changes)) is None
    assert failed_node(None, None) is None


def test_exclusions_grow_and_drop_the_oldest() -> None:
    assert next_excluded(["a", "b"], "c") == ["a", "b", "c"]
    assert next_excluded(["a", "b"], "a") == ["b", "a"]
    assert next_excluded(["a"], None) == ["a"]
    assert next_excluded([str(n) for n in range(MAX_EXCLUDED)], "new") == ["1", "2", "3", "4", "5", "6", "7", "new"]
