"""Which nodes all jobs avoid, from the faults of nodes over all jobs."""

from datetime import UTC, datetime, timedelta

import pytest

from service.cluster.exclusions import Exclusions, exclusions, limit
from service.db.models import NodeFault

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TWO = {"gpu": ["n1", "n2"]}


def fault(node: str, job: str, minutes_ago: float = 0, kind: str = "launch_failed") -> NodeFault:
    at = NOW - timedelta(minutes=minutes_ago)
    return NodeFault(attempt_id=f"{job}{node}{at}", node=node, job_id=job, attempt=1, kind=kind, created_at=at)


def names(decided: Exclusions) -> list[str]:
    return [node.name for node in decided.nodes]


def test_two_jobs_that_did_not_start_on_a_node_exclude_it_for_half_an_hour() -> None:
    faults = [fault("n2", "a", 20), fault("n2", "b", 5)]
    (node,) = exclusions(faults, TWO, NOW).nodes
    assert (node.name, node.partitions, node.jobs) == ("n2", ("gpu",), 2)
    assert (node.since, node.until) == (NOW - timedelta(minutes=5), NOW + timedelta(minutes=25))
    assert [one.job_id for one in node.faults] == ["b", "a"]
    assert names(exclusions(faults, TWO, NOW + timedelta(minutes=24.9))) == ["n2"]
    assert names(exclusions(faults, TWO, NOW + timedelta(minutes=25))) == []


def test_a_further_fault_prolongs_the_exclusion() -> None:
    (node,) = exclusions([fault("n2", "a", 29), fault("n2", "b", 20), fault("n2", "b", 1)], TWO, NOW).nodes
    assert (node.since, node.until) == (NOW - timedelta(minutes=20), NOW + timedelta(minutes=29))


@pytest.mark.parametrize(
    "faults",
    [
        [fault("n2", "a", 5), fault("n2", "a", 1)],
        [fault("n2", "a", 5), fault("n1", "b", 1)],
        [fault("n2", "a", 32), fault("n2", "b", 1)],
        [fault("n2", "a", 50), fault("n2", "b", 40)],
        *([fault("n2", "a", 5, kind), fault("n2", "b", 1, kind)] for kind in ("stalled", "node_failure", "reported")),
    ],
    ids=["one job", "two nodes", "too far apart", "too old", "stalls", "node failures", "named by workers"],
)
def test_other_faults_exclude_no_node(faults: list[NodeFault]) -> None:
    assert names(exclusions(faults, TWO, NOW)) == []


def test_kinds_of_launch_faults_count_together() -> None:
    (node,) = exclusions([fault("n2", "a", 2, "prolog_failed"), fault("n2", "b", 1, "not_started")], TWO, NOW).nodes
    assert node.cause == "workers did not start there, the prolog of the site failed there"
    assert node.drain_command == (
        "scontrol update nodename=n2 state=drain reason='Trainyard: 2 jobs did not start: workers did not start there, "
        "the prolog of the site failed there'"
    )


@pytest.mark.parametrize(("nodes", "most"), [(1, 0), (2, 1), (7, 1), (8, 2), (100, 25)])
def test_a_quarter_of_a_partition_is_excluded_at_most(nodes: int, most: int) -> None:
    assert limit(nodes) == most
    members = {"gpu": [f"n{number}" for number in range(nodes)]}
    faults = [fault(name, job, number) for number, name in enumerate(members["gpu"][:20]) for job in "ab"]
    decided = exclusions(faults, members, NOW)
    assert names(decided) == members["gpu"][: min(most, 20)], "the newest faults win"
    assert sorted((*names(decided), *decided.retained)) == sorted(members["gpu"][:20])


def test_a_node_stays_in_use_in_a_partition_where_it_is_alone() -> None:
    decided = exclusions([fault("n2", "a"), fault("n2", "b")], {**TWO, "debug": ["n2"], "high": ["n1", "n2"]}, NOW)
    assert [node.partitions for node in decided.nodes] == [("gpu", "high")]
    assert [node.name for node in decided.within({"high"})] == ["n2"]
    assert decided.within({"debug"}) == []
    assert decided.warning is None


def test_an_unknown_node_is_not_excluded() -> None:
    assert names(exclusions([fault("old", "a"), fault("old", "b")], TWO, NOW)) == []


def test_a_fault_of_the_site_is_named_as_such() -> None:
    members = {"gpu": [f"n{number}" for number in range(8)]}
    faults = [fault(f"n{number}", job, number) for number in range(4) for job in "ab"]
    warning = exclusions(faults, members, NOW).warning
    assert warning is not None
    assert warning.startswith("The limit is reached: n2, n3 would be excluded too")
    assert "did not start on 4 nodes within 10 minutes: the cause is probably the site" in warning
    single = exclusions([fault(f"n{number}", "a") for number in range(3)], members, NOW)
    assert (names(single), single.warning is None) == ([], False), "one job on three nodes"
    assert exclusions([fault("n0", "a"), fault("n0", "b"), fault("n1", "a")], members, NOW).warning is None
