"""Prometheus metrics and log fields."""

import pytest
import structlog

from service.scheduler.base import Ambiguous, Rejected
from tests.support.world import World
from trainyard.contract.wire.cluster import ClusterSnapshot, SlotCount

pytestmark = pytest.mark.databases("sqlite")


def series(world: World) -> dict[str, float]:
    lines = world.new_client(None).get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("trainyard_"))
    return {name: float(value) for name, value in pairs}


def test_submissions_are_counted_by_outcome(world: World) -> None:
    for outcome in (None, None, Rejected("no"), Ambiguous("perhaps")):
        world.scheduler.outcome = outcome
        world.submit()
        world.tick()
    metrics = series(world)
    assert metrics['trainyard_submissions_total{outcome="accepted"}'] == 2
    assert metrics['trainyard_submissions_total{outcome="rejected"}'] == 1
    assert metrics['trainyard_submissions_total{outcome="ambiguous"}'] == 1
    assert metrics["trainyard_submissions_unanswered"] == 1
    assert metrics["trainyard_submissions_in_flight"] == 0


def test_adopted_submissions_are_counted(world: World) -> None:
    world.submit()
    world.scheduler.lose_answers = True
    with pytest.raises(KeyboardInterrupt):
        world.tick()
    world.reconciler = world.new_reconciler("one")
    world.tick()
    metrics = series(world)
    assert metrics['trainyard_adoptions_total{how="name"}'] == 1
    assert metrics["trainyard_submissions_unanswered"] == 0


def test_reported_items_are_counted(world: World) -> None:
    worker = world.start(world.submit())
    worker.metrics([("train/loss", 1, 2.0), ("train/loss", 2, 1.0)])
    worker.log("0", 0, b"hello")
    worker.checkpoint(2)
    metrics = series(world)
    assert [
        metrics[f'trainyard_ingested_total{{kind="{kind}"}}'] for kind in ("points", "log_bytes", "checkpoints")
    ] == [*(2, 5, 1)]


def test_age_of_the_cluster_snapshot_is_exported(world: World) -> None:
    world.scheduler.nodes = ClusterSnapshot(slots=SlotCount(total=2, free=1))
    world.tick()
    assert series(world)["trainyard_cluster_age_seconds"] == 1


def test_log_lines_have_job_attempt_and_scheduler_id(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.clock.advance(60)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        world.scheduler.set_states("absent")
        world.tick()
    (line,) = [line for line in lines if line["event"] == "transition"]
    attempt = world.job(job)["attempt"]
    assert (line["target"], line["job"], line["attempt"]) == ("lost", job, attempt["id"])
    assert line["scheduler_id"] == attempt["scheduler_id"]
