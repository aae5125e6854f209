"""What a cluster can never give is refused, with the field and what there is; everything else is not."""

from typing import Any

import pytest

from service.specs.preflight import refusals
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import AccountResource, ClusterResource, NodeShape, PartitionResource

GPU = PartitionResource(
    name="gpu",
    default=True,
    time_limit_minutes=480,
    max_nodes=2,
    nodes={"idle": 1, "down": 3},
    shapes=[NodeShape(nodes=3, gpus={"a100": 4}), NodeShape(nodes=1, gpus={"v100": 8})],
)
CPU = PartitionResource(name="cpu", nodes={"idle": 2}, shapes=[NodeShape(nodes=2)])
CLUSTER = ClusterResource(backend="slurm", partitions=[GPU, CPU], age_seconds=30)


def told(cluster: ClusterResource = CLUSTER, **asked: Any) -> list[str]:
    nodes, gpus, minutes = asked.pop("nodes", 1), asked.pop("gpus", 0), asked.pop("minutes", None)
    return [str(problem) for problem in refusals(Resources(**asked), nodes, gpus, minutes, cluster)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"partition": "gpus"},
            "resources.partition: there is no partition `gpus` (did you mean `gpu`?); this "
            "cluster has: gpu (default), cpu",
        ),
        (
            {"partition": "cpu", "gpus": 1},
            "resources.partition: partition cpu has no GPUs; take a partition that has some",
        ),
        (
            {"minutes": 600},
            "resources.time_limit_minutes: 600 is more than partition gpu allows, which is 480; a job "
            "is continued past it",
        ),
        (
            {"nodes": 3},
            "resources.gpus_per_node: asks for 3 nodes, but in partition gpu a job can have 2; "
            "lower gpus or raise this",
        ),
        (
            {"partition": "cpu", "nodes": 3},
            "resources.gpus_per_node: asks for 3 nodes, but in partition cpu a job can have 2; "
            "lower gpus or raise this",
        ),
        (
            {"gpu_type": "h100", "gpus": 1},
            "resources.gpu_type: there is no `h100` in partition gpu; it has: a100, v100",
        ),
        (
            {"gpus": 16},
            "resources.gpus_per_node: 16 GPUs on one node are more than any node of partition gpu has; the most is 8",
        ),
        (
            {"gpu_type": "a100", "gpus": 8},
            "resources.gpus_per_node: 8 `a100` GPUs on one node are more than any node of partition gpu has; "
            "the most is 4",
        ),
        (
            {"gpus": 8, "nodes": 2},
            "gpus: 2 nodes with 8 GPUs each are more than partition gpu has; there are 1",
        ),
    ],
)
def test_is_refused(asked: dict[str, Any], expected: str) -> None:
    assert told(**asked) == [expected]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"partition": "gpu", "gpus": 4, "nodes": 2, "minutes": 480},
        {"partition": "gpu,cpu", "minutes": 10_000},
        {"gpu_type": "v100", "gpus": 8},
        {"qos": "long", "minutes": 10_000, "nodes": 4},
        {"account": "nobody-told-us", "qos": "either"},
    ],
)
def test_is_let_through(asked: dict[str, Any]) -> None:
    assert told(**asked) == []


def test_every_problem_is_told_at_once() -> None:
    assert len(told(gpus=16, minutes=600, nodes=3)) == 3


@pytest.mark.parametrize(
    "change",
    [{"age_seconds": None}, {"age_seconds": 301.0}, {"partitions": []}],
)
def test_a_missing_or_stale_snapshot_refuses_nothing(change: dict[str, Any]) -> None:
    assert told(CLUSTER.model_copy(update=change), partition="nowhere", minutes=10_000) == []


def test_without_a_default_partition_a_plugin_of_the_site_may_choose() -> None:
    cluster = CLUSTER.model_copy(update={"partitions": [CPU]})
    assert told(cluster, gpus=4, nodes=99) == []


ACCOUNTS = [
    AccountResource(name="physics", default=True, qos=["long", "normal"]),
    AccountResource(name="chemistry", qos=["normal"]),
]
BOTH = CLUSTER.model_copy(update={"accounts": ACCOUNTS, "enforced": ["account", "qos"]})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"account": "phisics"},
            "resources.account: this service may not use an account `phisics` (did you mean `physics`?); "
            "it may use: physics (default), chemistry",
        ),
        (
            {"account": "chemistry", "qos": "long"},
            "resources.qos: account chemistry may not use a qos `long`; there is: normal",
        ),
        ({"qos": "urgent"}, "resources.qos: the service's accounts may not use a qos `urgent`; there is: long, normal"),
    ],
)
def test_an_account_or_qos_that_slurm_would_refuse(asked: dict[str, Any], expected: str) -> None:
    assert told(BOTH, **asked) == [expected]


def test_accounts_that_exist_or_are_not_enforced_are_left_to_slurm() -> None:
    assert told(BOTH, account="Physics", qos="long") == []
    for enforced, asked in (
        ([], {"account": "x", "qos": "y"}),
        (["account"], {"qos": "y"}),
        (["qos"], {"account": "x"}),
    ):
        assert told(BOTH.model_copy(update={"enforced": enforced}), **asked) == []
    assert told(BOTH.model_copy(update={"accounts": None}), account="x") == [], "the accounting does not answer"
    assert told(BOTH.model_copy(update={"age_seconds": 400}), account="x") == [], "an old answer"
