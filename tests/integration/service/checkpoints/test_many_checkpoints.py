"""The checkpoints that one job reports are bounded in number and size, and are listed in pages."""

from typing import Any

import pytest
import sqlalchemy as sa

from service.db.models import Checkpoint
from service.jobs.repository import JobRepository
from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def job(world: World) -> str:
    return world.submit(checkpoint={"every_steps": 5, "keep_best": {"metric": "eval/loss", "mode": "max"}})


@pytest.fixture
def worker(world: World, job: str) -> FakeWorker:
    return world.start(job)


def listed(world: World, job: str, **params: Any) -> dict[str, Any]:
    answer = world.client.get(f"/v1/jobs/{job}/checkpoints", params=params)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


@pytest.mark.databases("sqlite", "postgres")
def test_pages_follow_each_other_in_both_orders(world: World, job: str, worker: FakeWorker) -> None:
    for step in (5, 10, 15):
        worker.checkpoint(step, metrics={"eval/loss": {10: 2.0}.get(step, "NaN")})
    first = listed(world, job, limit=2)
    assert ([row["step"] for row in first["data"]], first["has_more"]) == ([5, 10], True)
    assert [row["best"] for row in first["data"]] == [False, True]
    rest = listed(world, job, limit=2, after=first["last_id"])
    assert ([row["step"] for row in rest["data"]], rest["has_more"]) == ([15], False)
    assert rest["data"][0]["latest"]
    assert [row["step"] for row in listed(world, job, order="desc")["data"]] == [15, 10, 5]


def test_page_after_a_deleted_checkpoint_continues(world: World, job: str, worker: FakeWorker) -> None:
    for step in (5, 10, 15):
        worker.checkpoint(step)
    first = listed(world, job, limit=1)["last_id"]
    world.client.delete(f"/v1/jobs/{job}/checkpoints/{first}")
    assert [row["step"] for row in listed(world, job, after=first)["data"]] == [10, 15]


def test_page_after_an_unknown_checkpoint_is_404(world: World, job: str, worker: FakeWorker) -> None:
    answer = world.client.get(f"/v1/jobs/{job}/checkpoints", params={"after": "ckpt_" + "0" * 26})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "checkpoint_not_found")


def test_few_metrics_are_stored_and_the_compared_one_is_among_them(world: World, job: str, worker: FakeWorker) -> None:
    metrics = {f"eval/{'a' * 200}{number}": 1.0 for number in range(999)} | {"eval/loss": 3.0}
    worker.checkpoint(5, metrics=metrics)
    (row,) = listed(world, job)["data"]
    assert len(row["metrics"]) == 64
    assert (row["metrics"]["eval/loss"], row["best"]) == (3.0, True)


def test_oldest_rows_give_way_deleted_ones_first(
    world: World, job: str, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.attempts.repository.MAX_CHECKPOINTS", 4)
    for step in (5, 10, 15, 20):
        worker.checkpoint(step)
    worker.checkpoint(25, removed_steps=[10])
    worker.checkpoint(30)
    with world.database.read() as session:
        assert list(session.scalars(sa.select(Checkpoint.step).order_by(Checkpoint.step))) == [15, 20, 25, 30]
    assert world.job(job)["last_checkpoint_step"] == 30


def test_values_of_metrics_with_any_name_are_read(world: World, job: str, worker: FakeWorker) -> None:
    names = ['a"b', "a\\b", "`q`", "準確率", "a.b", "$[0]", "'"]
    worker.checkpoint(5, metrics={name: float(number) for number, name in enumerate(names)})
    with world.database.read() as session:
        jobs = JobRepository(session, world.clock())
        for number, name in enumerate(names):
            assert jobs.checkpoint_values(jobs.get(job), name) == [(5, float(number))]
