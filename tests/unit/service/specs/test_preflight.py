"""Requests that a cluster cannot satisfy are refused with the field and the available resources."""

from typing import Any

import pytest

from service.core.settings import Settings
from service.specs.acceptance import AcceptedSpec
from service.specs.preflight import resource_problems, unavailable_resources
from tests.unit.contract.test_environment import spec_with
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec
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


def problems(cluster: ClusterResource = CLUSTER, **requested: Any) -> list[str]:
    nodes, gpus, minutes = requested.pop("nodes", 1), requested.pop("gpus", 0), requested.pop("minutes", None)
    return [str(problem) for problem in resource_problems(Resources(**requested), nodes, gpus, minutes, cluster)]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (
            {"partition": "gpus"},
            "resources.partition: there is no partition `gpus` (did you mean `gpu`?); this "
            "cluster has: gpu (default), cpu",
        ),
        (
            {"partition": "cpu", "gpus": 1},
            "resources.partition: partition cpu has no GPUs; use a partition that has",
        ),
        (
            {"minutes": 600},
            "resources.time_limit_minutes: 600 exceeds the limit of partition gpu, 480; "
            "a job continues in a new attempt after it",
        ),
        (
            {"nodes": 3},
            "resources.gpus_per_node: requests 3 nodes, but a job in partition gpu can have 2; "
            "lower gpus or raise this",
        ),
        (
            {"partition": "cpu", "nodes": 3},
            "resources.gpus_per_node: requests 3 nodes, but a job in partition cpu can have 2; "
            "lower gpus or raise this",
        ),
        (
            {"gpu_type": "h100", "gpus": 1},
            "resources.gpu_type: partition gpu has no `h100` GPUs; it has: a100, v100",
        ),
        (
            {"gpus": 16},
            "resources.gpus_per_node: requests 16 GPUs per node, but the nodes of partition gpu have at most 8",
        ),
        (
            {"gpu_type": "a100", "gpus": 8},
            "resources.gpus_per_node: requests 8 `a100` GPUs per node, but the nodes of partition gpu have at most 4",
        ),
        (
            {"gpus": 8, "nodes": 2},
            "gpus: requests 2 nodes with 8 GPUs each, but partition gpu has 1",
        ),
    ],
)
def test_unavailable_resources_are_problems(requested: dict[str, Any], expected: str) -> None:
    assert problems(**requested) == [expected]


@pytest.mark.parametrize(
    "requested",
    [
        {},
        {"partition": "gpu", "gpus": 4, "nodes": 2, "minutes": 480},
        {"partition": "gpu,cpu", "minutes": 10_000},
        {"gpu_type": "v100", "gpus": 8},
        {"qos": "long", "minutes": 10_000, "nodes": 4},
        {"account": "nobody-told-us", "qos": "either"},
    ],
)
def test_available_resources_are_no_problem(requested: dict[str, Any]) -> None:
    assert problems(**requested) == []


def test_all_problems_are_reported_together() -> None:
    assert len(problems(gpus=16, minutes=600, nodes=3)) == 3


@pytest.mark.parametrize(
    "change",
    [{"age_seconds": None}, {"age_seconds": 301.0}, {"partitions": []}],
)
def test_missing_or_stale_snapshot_yields_no_problem(change: dict[str, Any]) -> None:
    assert problems(CLUSTER.model_copy(update=change), partition="nowhere", minutes=10_000) == []


def test_without_default_partition_nothing_is_checked() -> None:
    cluster = CLUSTER.model_copy(update={"partitions": [CPU]})
    assert problems(cluster, gpus=4, nodes=99) == []


ACCOUNTS = [
    AccountResource(name="physics", default=True, qos=["long", "normal"]),
    AccountResource(name="chemistry", qos=["normal"]),
]
BOTH = CLUSTER.model_copy(update={"accounts": ACCOUNTS, "enforced": ["account", "qos"]})


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (
            {"account": "phisics"},
            "resources.account: the service may not use account `phisics` (did you mean `physics`?); "
            "available: physics (default), chemistry",
        ),
        (
            {"account": "chemistry", "qos": "long"},
            "resources.qos: account chemistry may not use QOS `long`; available: normal",
        ),
        ({"qos": "urgent"}, "resources.qos: the service's accounts may not use QOS `urgent`; available: long, normal"),
    ],
)
def test_unknown_account_or_qos_is_a_problem(requested: dict[str, Any], expected: str) -> None:
    assert problems(BOTH, **requested) == [expected]


def test_known_or_unenforced_accounts_are_no_problem() -> None:
    assert problems(BOTH, account="Physics", qos="long") == []
    for enforced, requested in (
        ([], {"account": "x", "qos": "y"}),
        (["account"], {"qos": "y"}),
        (["qos"], {"account": "x"}),
    ):
        assert problems(BOTH.model_copy(update={"enforced": enforced}), **requested) == []
    assert problems(BOTH.model_copy(update={"accounts": None}), account="x") == [], "the accounting does not answer"
    assert problems(BOTH.model_copy(update={"age_seconds": 400}), account="x") == [], "an old answer"


@pytest.mark.parametrize("preflight", [True, False])
def test_memory_is_refused_where_no_job_requests_it(preflight: bool) -> None:
    settings = Settings(backend="slurm", slurm_memory_option="none", slurm_preflight=preflight)
    spec = spec_with()
    limited = spec.model_copy(update={"resources": Resources(memory_gb_per_gpu=8)})

    def accepted(one: TrainingSpec) -> AcceptedSpec:
        return AcceptedSpec(one, one, Site(accelerator="cpu"), ClusterResource(backend="slurm"))

    assert unavailable_resources(settings, accepted(spec)) == []
    (problem,) = unavailable_resources(settings, accepted(limited))
    assert problem.param == "resources.memory_gb_per_gpu"
    assert unavailable_resources(Settings(backend="slurm"), accepted(limited)) == []
