"""On Slurm the partition determines the accelerator of plans, accepted specs and submissions."""

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


def test_partition_determines_the_accelerator(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    others, on_gpus = cluster.submit(), cluster.submit(**ON_GPUS)
    messages = [
        (cluster.job(job)["spec"]["backend"], cluster.job(job)["spec"]["precision"]) for job in (others, on_gpus)
    ]
    assert messages == [("gloo", "fp32"), ("nccl", "bf16")]
    cluster.tick()
    assert [launched(cluster, job)["accelerator"] for job in (others, on_gpus)] == ["cpu", "cuda"]


def test_plan_shows_the_script_to_submit(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    answer = cluster.client.post("/v1/plans", json={**SPEC, **ON_GPUS}).json()
    assert "#SBATCH --gres=gpu:2" in answer["script"]
    assert answer["accelerator"] == "cuda"
    assert "--gres" not in cluster.client.post("/v1/plans", json=SPEC).json()["script"]


def test_first_snapshot_resolves_waiting_jobs(cluster: World) -> None:
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


def test_first_snapshot_rejects_impossible_jobs(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    job = cluster.submit(backend="nccl")
    cluster.tick()
    assert cluster.status(job) == "failed"
    assert "needs GPUs" in cluster.job(job)["error"]["message"]


def test_too_many_gpus_per_node_are_rejected(cluster: World) -> None:
    on_slurm(cluster, GPUS)
    cluster.tick()
    job = cluster.submit(gpus=8, resources={"partition": "gpu", "gpus_per_node": 8})
    cluster.tick()
    assert "resources.gpus_per_node" in cluster.job(job)["error"]["message"]
