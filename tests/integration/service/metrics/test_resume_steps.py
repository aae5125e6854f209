"""An execution resumed from the lowest step that its batches give, which hides points of earlier executions."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

import pytest

from service.metrics.ingest.decode import PointBatch
from service.metrics.ingest.repository import PointsRepository
from service.metrics.ingest.writer import PointWriter
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.reports import UNKNOWN_STEP

pytestmark = pytest.mark.databases("sqlite")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def curve(world: World, job: str) -> list[tuple[int, Any]]:
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=a").json()["series"]
    return list(zip(series["steps"], series["values"], strict=True))


def second_execution(world: World) -> tuple[str, FakeWorker]:
    """A job with the points 1 to 4 of a first execution; its worker is in the second."""
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("a", step, 1.0) for step in range(1, 5)])
    worker.execution = 2
    return job, worker


def test_lowest_step_of_the_batches_counts(world: World) -> None:
    job, worker = second_execution(world)
    worker.metrics([("a", 4, 2.0)], resumed=3)
    worker.metrics([("a", 2, 2.0)], resumed=1)
    worker.metrics([("a", 5, 2.0)], resumed=3)
    assert world.job(job)["attempt"]["resumed_from_step"] == 1
    assert curve(world, job) == [(1, 1.0), (2, 2.0), (4, 2.0), (5, 2.0)]


def test_unknown_step_hides_nothing_and_is_shown_as_null(world: World) -> None:
    job, worker = second_execution(world)
    worker.metrics([("a", 6, 2.0)], resumed=UNKNOWN_STEP)
    assert world.job(job)["attempt"]["resumed_from_step"] is None
    assert curve(world, job) == [*((step, 1.0) for step in range(1, 5)), (6, 2.0)]
    worker.metrics([("a", 7, 2.0)], resumed=3)
    assert world.job(job)["attempt"]["resumed_from_step"] == 3
    assert curve(world, job) == [(1, 1.0), (2, 1.0), (3, 1.0), (6, 2.0), (7, 2.0)]


def test_later_execution_is_shown_at_a_common_step(world: World) -> None:
    job, worker = second_execution(world)
    worker.metrics([("a", 3, 2.0)], resumed=UNKNOWN_STEP)
    expected = [(1, 1.0), (2, 1.0), (3, 2.0), (4, 1.0)]
    assert curve(world, job) == expected
    points = world.client.get(f"/v1/jobs/{job}/points").json()["data"]
    assert [(point["step"], point["value"]) for point in points] == expected
    rows = csv.DictReader(io.StringIO(world.client.get(f"/v1/jobs/{job}/metrics?format=csv").text))
    assert [(int(row["step"]), float(row["value"])) for row in rows] == expected


def test_axis_of_time_has_no_gap_before_an_unknown_step(world: World) -> None:
    job, worker = second_execution(world)
    worker.metrics([("a", 6, 2.0)], resumed=UNKNOWN_STEP)
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=a&x=time").json()["series"]
    assert max(series["x"]) < 1e6


def test_another_writer_does_not_raise_the_step(world: World) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    first, second = PointWriter(world.database), PointWriter(world.database)
    first.write([(attempt, PointBatch(2, 5, [("a", 6, 1.0, 0, 0, None)], None))], NOW)
    second.write([(attempt, PointBatch(2, 2, [("a", 7, 1.0, 0, 0, None)], None))], NOW)
    first.write([(attempt, PointBatch(2, 5, [("a", 8, 1.0, 0, 0, None)], None))], NOW)
    assert world.job(job)["attempt"]["resumed_from_step"] == 2


def test_known_step_costs_no_statement(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = world.start(world.submit()).attempt_id
    writer = PointWriter(world.database)
    writer.write([(attempt, PointBatch(1, 5, [("a", 6, 1.0, 0, 0, None)], None))], NOW)
    for name in ("add_execution", "set_reported_execution"):
        monkeypatch.delattr(PointsRepository, name)
    writer.write([(attempt, PointBatch(1, resumed, [("a", 7, 1.0, 0, 0, None)], None)) for resumed in (5, 9)], NOW)
