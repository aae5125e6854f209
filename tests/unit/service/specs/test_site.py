"""The accelerator of a job's ranks, by its partition."""

from datetime import UTC, datetime

import pytest

from service.core.settings import Settings
from service.specs.site import site_of
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.cluster import ClusterResource, NodeShape, PartitionResource

ON_SLURM = Settings(backend="slurm")
CLUSTER = ClusterResource(
    backend="slurm",
    taken_at=datetime(2020, 1, 1, tzinfo=UTC),
    age_seconds=1e6,
    partitions=[
        PartitionResource(name="cpu", default=True, shapes=[NodeShape(nodes=4)]),
        PartitionResource(name="gpu", shapes=[NodeShape(nodes=2, gpus={"a100": 4})]),
    ],
)


@pytest.mark.parametrize(
    ("resources", "accelerator"),
    [
        ({}, "cpu"),
        ({"partition": "gpu"}, "cuda"),
        ({"partition": "cpu,gpu"}, "cuda"),
        ({"gpu_type": "a100"}, "cuda"),
        ({"partition": "unknown"}, "cuda"),
    ],
)
def test_stale_snapshot_still_determines_the_accelerator(resources: dict[str, str], accelerator: str) -> None:
    assert site_of(ON_SLURM, Resources(**resources), CLUSTER).accelerator == accelerator


def test_accelerator_is_unknown_before_the_first_snapshot() -> None:
    nothing = ClusterResource(backend="slurm")
    assert site_of(ON_SLURM, Resources(partition="gpu"), nothing).accelerator is None
    assert site_of(ON_SLURM, Resources(gpu_type="a100"), nothing).accelerator == "cuda"


@pytest.mark.parametrize(
    ("resources", "minutes"),
    [
        ({}, None),
        ({"partition": "short"}, 60),
        ({"partition": "default"}, 30),
        ({"partition": "cpu,short,default"}, 30),
        ({"partition": "short", "qos": "long"}, None),
    ],
)
def test_partition_limit_applies_without_a_qos(resources: dict[str, str], minutes: int | None) -> None:
    short = PartitionResource(name="short", time_limit_minutes=60)
    default = PartitionResource(name="default", time_limit_minutes=1440, default_time_minutes=30)
    cluster = CLUSTER.model_copy(update={"partitions": [*CLUSTER.partitions, short, default]})
    assert site_of(ON_SLURM, Resources(**resources), cluster).partition_limit_minutes == minutes


def test_accelerator_setting_overrides_the_cluster() -> None:
    forced = Settings(backend="slurm", accelerator="cpu")
    assert site_of(forced, Resources(partition="gpu", gpu_type="a100"), CLUSTER).accelerator == "cpu"
