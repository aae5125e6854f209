"""Curves: read from buckets, exact where a later execution resumed, and exported."""

import csv
import io
from typing import Any

import pytest

from service.db.models import Job
from service.jobs.repository import JobRepository
from service.metrics.downsampling.downsampler import downsample_job
from service.metrics.repository import CurveRepository
from service.metrics.retention import trim
from tests.support.wait import wait_until
from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")


def report(worker: FakeWorker, first: int, last: int, value: float = 1.0, *, resumed: int = 0, key: str = "a") -> None:
    extremes = {5_000: 99.0, 7_777: -99.0}
    for start in range(first, last + 1, 1000):
        steps = range(start, min(start + 1000, last + 1))
        assert worker.metrics([(key, s, extremes.get(s, value)) for s in steps], resumed=resumed).status_code == 200


def downsample_all(world: World, job: str) -> None:
    """Downsample everything that the service's own thread has not downsampled yet."""
    with world.database.read() as session:
        row = JobRepository(session, world.clock()).get(job)

    def done() -> bool:
        downsample_job(world.database, row.pk)
        with world.database.read() as session:
            cursor = CurveRepository(session, world.database).cursor(row.pk)
        return cursor is not None and cursor.sequence == row.sequence

    wait_until(done)


def curve(world: World, job: str, **query: Any) -> dict[str, Any]:
    (one,) = world.client.get(f"/v1/jobs/{job}/metrics", params=query).json()["series"]
    return one


def test_long_curve_keeps_extremes_and_ends(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    report(worker, 1, 12_000)
    downsample_all(world, job)
    report(worker, 12_001, 12_100)
    one = curve(world, job, max_points=100)
    assert one["truncated"] is True
    assert len(one["steps"]) <= 100
    values = dict(zip(one["steps"], one["values"], strict=True))
    assert (values[5_000], values[7_777]) == (99.0, -99.0)
    assert (one["steps"][0], one["steps"][-1]) == (1, 12_100), "pending points are included"


def test_short_curve_is_returned_unchanged(world: World) -> None:
    job = world.submit()
    report(world.start(job), 1, 3_000)
    downsample_all(world, job)
    one = curve(world, job, max_points=3_000)
    assert (one["steps"], one["truncated"]) == (list(range(1, 3_001)), False)


@pytest.mark.databases("sqlite", "postgres")
def test_repeated_downsampling_changes_nothing(world: World) -> None:
    job = world.submit()
    report(world.start(job), 1, 5_000)
    downsample_all(world, job)
    before = curve(world, job, max_points=50)
    downsample_all(world, job)
    assert curve(world, job, max_points=50) == before


def test_points_hidden_by_a_later_execution_are_not_returned(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    report(worker, 1, 9_000)
    downsample_all(world, job)
    worker.execution = 2
    report(worker, 4_001, 12_000, 2.0, resumed=4_000)
    downsample_all(world, job)
    one = curve(world, job, max_points=60)
    assert all(value == 1.0 for step, value in zip(one["steps"], one["values"], strict=True) if step <= 4_000)
    assert {2.0, 99.0, -99.0} == {v for s, v in zip(one["steps"], one["values"], strict=True) if s > 4_000}
    near = curve(world, job, from_step=3_990, to_step=4_010)
    assert list(zip(near["steps"], near["values"], strict=True)) == [
        (step, 1.0 if step <= 4_000 else 2.0) for step in range(3_990, 4_011)
    ]


def test_comparison_returns_curves_of_several_jobs(world: World) -> None:
    jobs = [world.submit() for _ in range(2)]
    for number, job in enumerate(jobs):
        world.start(job).metrics([("a", 1, float(number)), ("b", 1, 5.0)])
    answer = world.client.get("/v1/metrics", params={"job": jobs, "keys": "a"}).json()
    assert [(one["job_id"], one["series"][0]["values"]) for one in answer["data"]] == [
        (jobs[0], [0.0]),
        (jobs[1], [1.0]),
    ]
    twice = world.client.get("/v1/metrics", params={"job": [jobs[0], jobs[0]]})
    assert (twice.status_code, twice.json()["error"]["param"]) == (422, "job")
    assert world.client.get("/v1/metrics", params={"job": ["job_x"] * 21}).status_code == 422


@pytest.mark.databases("sqlite", "postgres")
def test_point_pages_contain_every_visible_point_once(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([(key, step, 1.0) for key in "ab" for step in range(1, 8)])
    worker.execution = 2
    worker.metrics([("a", 5, 2.0)], resumed=4)
    values, after = [], None
    while True:
        page = world.client.get(
            f"/v1/jobs/{job}/points", params={"limit": 3, **({"after": after} if after else {})}
        ).json()
        values += [(one["key"], one["step"], one["value"]) for one in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert values == [("a", s, 1.0) for s in range(1, 5)] + [("a", 5, 2.0)] + [("b", s, 1.0) for s in range(1, 5)]
    bad = world.client.get(f"/v1/jobs/{job}/points?after=x")
    assert (bad.status_code, bad.json()["error"]["param"]) == (422, "after")


def test_comparison_csv_is_one_table(world: World) -> None:
    jobs = []
    for seed in (1, 2):
        jobs.append(world.submit(seed=seed))
        worker = world.start(jobs[-1])
        worker.metrics([("train/loss", step, float(seed * step)) for step in (1, 2)])
    text = world.client.get("/v1/metrics", params={"job": jobs, "format": "csv"}).text
    rows = [(row["job"], row["key"], row["step"], row["value"]) for row in csv.DictReader(io.StringIO(text))]
    assert rows == [
        (job, "train/loss", str(step), repr(float(seed * step))) for seed, job in enumerate(jobs, 1) for step in (1, 2)
    ]
    missing = world.client.get("/v1/metrics", params={"job": [jobs[0], "job_nothing"], "format": "csv"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "job")


def test_csv_contains_the_same_curve(world: World) -> None:
    job = world.submit()
    report(world.start(job), 1, 2_500)
    rows = list(
        csv.DictReader(io.StringIO(world.client.get(f"/v1/jobs/{job}/metrics?format=csv&max_points=5000").text))
    )
    assert [int(row["step"]) for row in rows] == list(range(1, 2_501))
    assert world.client.get("/v1/jobs/job_nothing/metrics?format=csv").status_code == 404


def test_retention_deletes_points_and_keeps_curves(world: World) -> None:
    old, fresh = world.submit(), world.submit()
    for job in (old, fresh):
        report(world.start(job), 1, 9_000)
    before = curve(world, old, max_points=40)
    world.worker(old).end("completed")
    world.tick(3)
    assert world.status(old) == "succeeded"
    world.clock.advance(3600)
    while trim(world.database, world.clock()):
        pass
    after = curve(world, old, max_points=40)
    assert after["truncated"] is True
    assert (
        {max(after["values"]), min(after["values"])} == {max(before["values"]), min(before["values"])} == {99.0, -99.0}
    )
    assert (after["steps"][0], after["steps"][-1]) == (1, 9_000)
    points = world.client.get(f"/v1/jobs/{old}/points?limit=10000").json()["data"]
    assert points == []
    assert len(curve(world, fresh, max_points=10_000)["steps"]) == 9_000


def test_training_seconds_exclude_gaps_between_executions(world: World) -> None:
    job = world.submit()
    worker = world.start(job)

    def report_over_time(steps: range, resumed: int) -> None:
        for step in steps:
            world.clock.advance(2)
            assert worker.metrics([("train/loss", step, 1.0), ("lr", step, 0.1)], resumed=resumed).status_code == 200

    report_over_time(range(1, 31), 0)
    world.clock.advance(3600)
    worker.execution = 2
    report_over_time(range(21, 41), 20)
    for params in ({}, {"max_points": 10}, {"from_step": 30, "keys": "lr"}):
        answer = world.client.get(f"/v1/jobs/{job}/metrics", params={"x": "time", **params}).json()
        assert answer["axis"] == "time"
        for one in answer["series"]:
            assert one["x"] == [2.0 * step for step in one["steps"]], params
    both = world.client.get("/v1/metrics", params={"job": job, "x": "time"}).json()["data"][0]
    assert both["series"][0]["x"] == [2.0 * step for step in range(1, 41)]
    plain = world.client.get(f"/v1/jobs/{job}/metrics").json()
    assert (plain["axis"], plain["series"][0]["x"]) == ("step", None)
    text = world.client.get(f"/v1/jobs/{job}/metrics", params={"x": "time", "format": "csv", "keys": "lr"}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["seconds"]) for row in rows] == [2.0 * step for step in range(1, 41)]


@pytest.mark.databases("sqlite", "postgres")
def test_training_seconds_survive_retention(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for start in range(1, 9_001, 1_000):
        world.clock.advance(500)
        worker.metrics([("train/loss", start, 1.0)])
    downsample_all(world, job)
    before = world.client.get(f"/v1/jobs/{job}/metrics?x=time").json()["series"][0]
    assert before["x"][-1] == 4_000.5
    worker.end("completed")
    world.tick(3)
    world.clock.advance(3600)
    while trim(world.database, world.clock()):
        pass
    after = world.client.get(f"/v1/jobs/{job}/metrics?x=time").json()["series"][0]
    assert (after["x"][0], after["x"][-1]) == (before["x"][0], before["x"][-1])


def test_token_axis_requires_a_job_that_trains_on_tokens(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", 2, 1.0)])
    for query in ("", "&format=csv"):
        refused = world.client.get(f"/v1/jobs/{job}/metrics?x=tokens{query}")
        assert refused.status_code == 409
        assert refused.json()["error"] == {
            "message": f"job {job} counts no tokens: `regression` trains on examples; use `step` or `time`",
            "type": "conflict_error",
            "param": "x",
            "code": "no_tokens",
        }
    worker.metrics([("train/tokens", 2, 1280.0)])
    answer = world.client.get(f"/v1/jobs/{job}/metrics?x=tokens&keys=train/loss").json()
    assert answer["series"][0]["x"] == [1280.0]
    text = world.client.get(f"/v1/jobs/{job}/metrics?x=tokens&keys=train/loss&format=csv").text
    assert text.splitlines()[0] == "key,step,value,time,tokens"
    assert text.splitlines()[1].endswith(",1280")


def test_csv_of_many_metrics_reads_the_job_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)
    for start in range(0, 1200, 400):
        worker.metrics([(f"m/{number:04}", 1, 1.0) for number in range(start, start + 400)])
    loads: list[str] = []
    get = JobRepository.get

    def counted(repository: JobRepository, job_id: str) -> Job:
        loads.append(job_id)
        return get(repository, job_id)

    monkeypatch.setattr(JobRepository, "get", counted)
    text = world.client.get(f"/v1/jobs/{job}/metrics?format=csv").text
    assert len(text.splitlines()) == 1201
    assert len(loads) < 20, "the job's row has the latest value of each metric"
