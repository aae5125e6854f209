"""Which node an end is laid at."""

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


def test_the_worker_names_it() -> None:
    assert failed_node(finish("n2"), ended()) == "n2"
    assert failed_node(finish("n2; rm"), ended()) is None


def test_slurms_word_of_a_failed_node_stands_beside_any_of_the_workers() -> None:
    preempted = FinishRecord(execution=1, reason="preempted", time=datetime(2026, 1, 1, tzinfo=UTC))
    assert failed_node(preempted, ended()) == "n1"
    assert failed_node(preempted, ended(nodes=("n[1-2]",))) is None
    assert failed_node(preempted, ended(ended_as="failed")) is None


def test_without_its_word_a_failure_on_one_node_is_that_nodes() -> None:
    assert failed_node(None, ended()) == "n1"
    assert failed_node(None, ended(ended_as="failed")) == "n1"


def test_the_same_end_on_ever_more_nodes_is_not_theirs() -> None:
    assert failed_node(None, ended(ended_as="failed"), ["n8"]) == "n1"
    assert failed_node(None, ended(ended_as="failed"), ["n8", "n9"]) is None
    assert failed_node(None, ended(), ["n8", "n9"]) == "n1", "Slurm itself says so"
    assert failed_node(finish("n2"), ended(), ["n8", "n9"]) == "n2"


@pytest.mark.parametrize(
    "changes",
    [{"nodes": ("n[1-2]",)}, {"nodes": ()}, {"ended_as": "preempted"}, {"ended_as": "cancelled"}, {"ended_as": None}],
)
def test_otherwise_no_node_is_to_blame(changes: dict[str, Any]) -> None:
    assert failed_node(None, ended(**changes)) is None
    assert failed_node(None, None) is None


def test_the_list_grows_by_the_last_one_and_forgets_the_oldest() -> None:
    assert next_excluded(["a", "b"], "c") == ["a", "b", "c"]
    assert next_excluded(["a", "b"], "a") == ["b", "a"]
    assert next_excluded(["a"], None) == ["a"]
    assert next_excluded([str(n) for n in range(MAX_EXCLUDED)], "new") == ["1", "2", "3", "4", "5", "6", "7", "new"]
