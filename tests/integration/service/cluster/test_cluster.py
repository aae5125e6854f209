"""The cluster snapshot: polled rarely, served to every user, and compared with the resources of new jobs."""

from datetime import timedelta

import pytest

from service.scheduler.base import Observation
from tests.support.world import World
from trainyard.contract.wire.cluster import ClusterSnapshot, GpuCount, NodeShape, PartitionResource, SlotCount

pytestmark = pytest.mark.databases("sqlite")

TWO_NODES = ClusterSnapshot(
    partitions=[
        PartitionResource(
            name="gpu",
            default=True,
            time_limit_minutes=60,
            nodes={"idle": 2},
            shapes=[NodeShape(nodes=2, gpus={"": 2})],
        )
    ],
    nodes={"idle": 2},
    gpus=[GpuCount(total=4, free=3)],
)


def on_slurm(world: World, nodes: ClusterSnapshot = TWO_NODES) -> None:
    world.settings.backend = "slurm"
    world.scheduler.name = "slurm"
    world.scheduler.nodes = nodes
    world.reconciler = world.new_reconciler("one")


def cluster(world: World) -> dict:
    answer = world.client.get("/v1/cluster")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_no_snapshot_before_the_first_poll(world: World) -> None:
    result = cluster(world)
    assert (result["object"], result["taken_at"], result["age_seconds"], result["partitions"]) == (
        "cluster",
        None,
        None,
        [],
    )


@pytest.mark.databases("sqlite", "postgres")
def test_snapshot_has_an_age(world: World) -> None:
    on_slurm(world)
    world.tick()
    world.clock.advance(9)
    result = cluster(world)
    assert (result["backend"], result["age_seconds"], result["nodes"]) == ("slurm", 10.0, {"idle": 2})
    assert result["gpus"] == [{"type": None, "total": 4, "free": 3}]
    assert result["partitions"][0]["time_limit_minutes"] == 60


def test_cluster_is_polled_once_a_minute(world: World) -> None:
    on_slurm(world)
    for _ in range(20):
        world.tick()
        world.clock.advance(4)
        cluster(world)
        if world.scheduler.cluster_calls == 1:
            world.reconciler = world.new_reconciler("one")
    assert world.scheduler.cluster_calls == 2


def test_new_snapshot_does_not_hurry_the_next_tick(world: World) -> None:
    on_slurm(world)
    world.tick()
    assert world.scheduler.cluster_calls == 1
    assert not world.reconciler.changed


def test_failed_poll_keeps_the_last_snapshot(world: World) -> None:
    on_slurm(world)
    world.tick()
    world.scheduler.unavailable = True
    world.clock.advance(60)
    world.tick()
    result = cluster(world)
    assert (result["error"], result["age_seconds"], result["nodes"]) == ("it does not answer", 62.0, {"idle": 2})
    world.scheduler.unavailable = False
    world.clock.advance(60)
    world.tick()
    assert cluster(world)["error"] is None


def test_failed_first_poll_is_reported(world: World) -> None:
    on_slurm(world)
    world.scheduler.unavailable = True
    world.tick()
    result = cluster(world)
    assert (result["error"], result["taken_at"]) == ("it does not answer", None)


def test_local_slots_are_reported(world: World) -> None:
    world.scheduler.nodes = ClusterSnapshot(slots=SlotCount(total=2, free=1))
    world.tick()
    assert cluster(world)["slots"] == {"total": 2, "free": 1}


def test_cluster_requires_a_token(world: World) -> None:
    assert world.new_client(None).get("/v1/cluster").status_code == 401


class TestPreflight:
    def test_unavailable_resources_reject_the_job(self, world: World) -> None:
        on_slurm(world)
        job = world.submit(resources={"partition": "gpus"})
        world.tick()
        shown = world.job(job)
        text = (
            "resources.partition: there is no partition `gpus` (did you mean `gpu`?); this cluster has: gpu (default)"
        )
        assert (shown["status"], shown["status_reason"], shown["status_message"]) == ("failed", "rejected", text)
        assert "trainyard cluster" in shown["error"]["hint"]
        assert (world.scheduler.submitted, shown["attempt"]) == ([], None)

    def test_default_time_limit_is_checked(self, world: World) -> None:
        on_slurm(world)
        world.settings.slurm_time_limit_minutes = 61
        job = world.submit()
        world.tick()
        assert world.job(job)["status_message"].startswith("resources.time_limit_minutes: 61 exceeds the limit of")

    def test_stale_snapshot_leaves_the_decision_to_slurm(self, world: World) -> None:
        on_slurm(world)
        world.tick()
        world.clock.advance(600)
        world.reconciler._cluster_poll.polled_at = world.clock()
        job = world.submit(resources={"partition": "gpus"})
        world.tick()
        assert world.status(job) == "pending"

    def test_preflight_can_be_disabled(self, world: World) -> None:
        on_slurm(world)
        world.settings.slurm_preflight = False
        job = world.submit(resources={"partition": "gpus"})
        world.tick()
        assert world.status(job) == "pending"

    def test_job_that_has_run_is_not_checked_again(self, world: World) -> None:
        on_slurm(world)
        job = world.submit(resources={"partition": "gpu"})
        worker = world.start(job)
        world.scheduler.nodes = ClusterSnapshot(partitions=[PartitionResource(name="other")])
        world.clock.advance(60)
        worker.end("preempted")
        world.tick(2)
        assert world.job(job)["attempt"]["number"] == 2


def test_estimated_start_is_shown_while_the_job_waits(world: World) -> None:
    job = world.submit()
    world.tick()
    start = world.clock() + timedelta(minutes=30)
    world.scheduler.states = {
        tag: Observation("pending", "soon", estimated_start=start) for tag in world.scheduler.states
    }
    world.tick()
    assert world.job(job)["estimated_start"] == "2026-01-01T00:30:01.000Z"
    world.tick()
    assert not world.reconciler.changed
    world.scheduler.set_states("pending", "soon")
    world.tick()
    assert world.job(job)["estimated_start"] is None
    world.scheduler.set_states("running")
    world.worker(job).claim()
    assert world.job(job)["estimated_start"] is None
