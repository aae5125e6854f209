"""On Slurm the partition says whether the ranks get GPUs: in the plan, in what is accepted and in what is submitted."""

import json
from pathlib import Path

import pytest

from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.world import SPEC, World
from trainyard.contract.wire.cluster import ClusterSnapshot, NodeShape, PartitionResource

pytestmark = pytest.mark.databases("sqlite")

GPUS = ClusterSnapshot(
    partitions=[
        PartitionResource(name="cpu", default=True, nodes={"idle": 2}, shapes=[NodeShape(nodes=2)]),
        PartitionResource(name="gpu", nodes={"idle": 2}, shapes=[NodeShape(nodes=2, gpus={"": 2})]),
    ]
)
ON_GPUS = {"resources": {"partition": "gpu"}}


@pytest.fixture
def cluster(database_url: str, tmp_path: Path) -> World:
    return World(database_url, tmp_path / "state", backend="slurm", accelerator="auto")


def launched(world: World, job_id: str) -> dict:
    return dict(json.loads(world.folder(job_id).launch.read_text()))


def test_what_is_accepted_and_launched_follows_the_partition(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    beside, on_gpus = cluster.submit(), cluster.submit(**ON_GPUS)
    told = [(cluster.job(job)["spec"]["backend"], cluster.job(job)["spec"]["precision"]) for job in (beside, on_gpus)]
    assert told == [("gloo", "fp32"), ("nccl", "bf16")]
    cluster.tick()
    assert [launched(cluster, job)["accelerator"] for job in (beside, on_gpus)] == ["cpu", "cuda"]


def test_the_plan_shows_the_script_that_will_be_submitted(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    answer = cluster.client.post("/v1/plans", json={**SPEC, **ON_GPUS}).json()
    assert "#SBATCH --gres=gpu:2" in answer["script"]
    assert answer["accelerator"] == "cuda"
    assert "--gres" not in cluster.client.post("/v1/plans", json=SPEC).json()["script"]


def test_without_a_snapshot_a_job_waits_and_is_settled_by_the_first(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.scheduler.unavailable = True
    job = cluster.submit(**ON_GPUS)
    assert cluster.job(job)["spec"]["backend"] == "auto"
    cluster.tick()
    cluster.scheduler.unavailable = False
    cluster.tick()
    assert (cluster.status(job), cluster.job(job)["attempt"]) == ("queued", None)
    assert "TRAINYARD_ACCELERATOR" in cluster.job(job)["status_message"]
    cluster.clock.advance(60)
    cluster.tick()
    assert cluster.status(job) == "pending"
    assert cluster.job(job)["spec"]["backend"] == "nccl"
    assert launched(cluster, job)["accelerator"] == "cuda"


def test_what_the_partition_cannot_run_is_refused_once_that_is_known(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    job = cluster.submit(backend="nccl")
    cluster.tick()
    assert cluster.status(job) == "failed"
    assert "needs GPUs" in cluster.job(job)["error"]["message"]


def test_more_gpus_on_a_node_than_it_has_are_refused_before_submission(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    job = cluster.submit(gpus=8, resources={"partition": "gpu", "gpus_per_node": 8})
    cluster.tick()
    assert "resources.gpus_per_node" in cluster.job(job)["error"]["message"]
