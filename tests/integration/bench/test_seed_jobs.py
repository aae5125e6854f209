"""The jobs that benchmarks insert without a scheduler receive reports."""

import pytest

from bench._seed_jobs import seed_jobs
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def test_seeded_job_accepts_points_after_ticks_of_the_reconciler(world: World) -> None:
    (job,) = seed_jobs(world.database, 1)
    world.tick(3)
    point = {"key": "train/loss", "step": 1, "value": 0.5, "time": "2026-01-01T00:00:00.000Z"}
    body = {"execution": 1, "resumed_from_step": 0, "points": [point], "progress": None}
    answer = world.new_client(job.token).post(job.metrics_path, json=body)
    assert answer.status_code == 200, answer.text
