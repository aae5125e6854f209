"""Who has what of a cluster."""

import pytest

from service.web.formatting import NOTHING
from service.web.pages.cluster_view import Owner, Pool, owners, partition_cells, pools, sentence
from tests.unit.service.web.test_job_view import NOW, job
from trainyard.contract.wire.cluster import ClusterResource, GpuCount, PartitionResource, SlotCount


def test_who_holds_most_comes_first() -> None:
    jobs = [
        job(created_by="ada", status="pending", spec={"gpus": 8}),
        job(created_by="bob", status="running", spec={"gpus": 4}),
        job(created_by="bob", status="cancelling", spec={}),
        job(created_by="eve", status="queued", spec={"gpus": 1}),
    ]
    assert owners(jobs) == [Owner("bob", 2, 5, 0, 0), Owner("ada", 0, 0, 1, 8), Owner("eve", 0, 0, 1, 1)]


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (ClusterResource(backend="slurm"), "Waiting for the first scheduler poll"),
        (ClusterResource(backend="slurm", taken_at=NOW, age_seconds=1, nodes={"idle": 2, "down": 1}), "2 idle, 1 down"),
        (ClusterResource(backend="local", taken_at=NOW, age_seconds=1, slots=SlotCount(total=4, free=1)), "1 is free"),
    ],
)
def test_cluster_state_is_one_sentence(cluster: ClusterResource, text: str) -> None:
    assert text in sentence(cluster)


def test_unknown_values_are_not_invented() -> None:
    cluster = ClusterResource(
        backend="slurm", gpus=[GpuCount(type=None, total=8), GpuCount(type="a100", total=4, free=1)]
    )
    assert pools(cluster) == [Pool("GPUs", None, 8), Pool("a100", 1, 4)]
    assert [pool.label for pool in pools(cluster)] == ["8", "1 of 4 free"]
    assert [pool.in_use for pool in pools(cluster)] == [0.0, 0.75]


def test_a_partition_without_limits_is_shown_as_unlimited() -> None:
    assert partition_cells(PartitionResource(name="cpu")) == ("none", "any", "none", NOTHING, "all")
    cells = PartitionResource(
        name="gpu",
        time_limit_minutes=480,
        max_nodes=4,
        groups=["nlp"],
        nodes={"idle": 3},
        gpus=[GpuCount(total=8, free=3)],
    )
    assert partition_cells(cells) == ("8 h", "up to 4", "3 idle", "3 of 8", "nlp")
