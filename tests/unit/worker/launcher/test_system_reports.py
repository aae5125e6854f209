"""Reports of the system: their names, steps and records."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import UNKNOWN_STEP, MetricsBatch, Point
from trainyard.contract.wire.spool import parse_spool
from worker.launcher.system_reports import IdleGpus, NodeSpool, SystemReports, metrics_of, next_step
from worker.reporting.service_client import ServiceClient
from worker.trackers.history import read_history
from worker.trackers.journal import Journal, TrackedValue

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def layout(tmp_path: Path) -> AttemptLayout:
    layout = RunLayout(tmp_path).attempt("1-att")
    layout.spool.mkdir(parents=True)
    layout.progress.mkdir()
    return layout


class FixedUsage:
    def read(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
        return {"cpu_percent": 7.0}, {3: {"rss_bytes": 5.0}}


class FixedGpus:
    def read(self) -> dict[int, dict[str, float]]:
        return {1: {"power_watts": 300.0}}


def test_each_metric_names_what_it_is_of() -> None:
    assert metrics_of(2, *FixedUsage().read(), FixedGpus().read()) == {
        "system/node-2/cpu_percent": 7.0,
        "system/rank-3/rss_bytes": 5.0,
        "system/node-2/gpu-1/power_watts": 300.0,
    }


def test_steps_are_those_of_the_training_but_never_twice_the_same() -> None:
    steps: list[int] = []
    for progress in (0, 0, 0, 40, 40, 41, 90):
        steps.append(next_step(steps[-1] if steps else None, progress))
    assert steps == [0, 1, 2, 40, 41, 42, 90]


def write_progress(layout: AttemptLayout, execution: int, step: int) -> None:
    record = {"rank": 0, "execution": execution, "marks": 1, "step": step, "phase": "forward"}
    (layout.progress / "rank-0.json").write_text(json.dumps(record))


def test_readings_follow_the_progress_of_the_execution(layout: AttemptLayout) -> None:
    appended: list[tuple[int, int]] = []

    class FullDisk(NodeSpool):
        def append(self, execution: int, points: Sequence[Point]) -> None:
            appended.append((execution, points[0].step))
            raise OSError("the disk is full")  # leaves the reading out, and nothing else

    spool = FullDisk(layout, 0, lambda: cast(ServiceClient, Unreachable()))
    executions = iter((1, 1, 2))
    reports = SystemReports(layout, 0, lambda: next(executions), FixedUsage(), FixedGpus, spool, now=lambda: NOW)
    reports.report()
    write_progress(layout, 1, 12)
    reports.report()
    reports.report()
    assert appended == [(1, 0), (1, 12), (2, 0)]


def test_gpus_are_idle_after_five_minutes_without_work() -> None:
    idle = IdleGpus()
    readings = [
        (0, {0: 0.0, 1: 0.0}), (290, {0: 0.0, 1: 0.0}), (300, {0: 0.0, 1: 4.0}), (310, {0: 99.0, 1: 0.0}),
        (600, {0: 0.0, 1: 0.0}), (610, {0: 0.0, 1: 0.0}),
    ]  # fmt: skip
    counts = [
        idle.count({gpu: {"utilization_percent": value} for gpu, value in values.items()}, now)
        for now, values in readings
    ]
    assert counts == [0, 0, 2, 1, 1, 2]
    assert idle.count({0: {}, 1: {}}, 2000) == 0


class Unreachable:
    """A service that does not answer."""

    def close(self) -> None: ...


def points(execution: int) -> list[Point]:
    return [Point(key="system/node-0/cpu_percent", step=9, value=execution, time=NOW)]


def test_spool_is_made_by_the_first_points_and_continues_one_that_is_there(layout: AttemptLayout) -> None:
    for _ in range(2):  # the launcher was started again
        spool = NodeSpool(layout, 0, lambda: cast(ServiceClient, Unreachable()))
        assert _ or not list(layout.spool.iterdir())
        spool.append(1, points(1))
        spool.close(0.0)
    records = list(parse_spool(layout.tracker_spool(1, 0)))
    assert [record.seq for record in records] == [0, 1]
    body = records[1].body()
    assert isinstance(body, MetricsBatch)
    assert (body.resumed_from_step, body.progress, body.points) == (UNKNOWN_STEP, None, tuple(points(1)))


def test_readings_have_no_part_in_the_steps_of_a_program(layout: AttemptLayout) -> None:
    journal = Journal(layout, 0)
    journal.add_points(1, [Point(key="system/node-0/cpu_percent", step=10**6, value=1.0, time=NOW)])
    journal.log(1, "mlflow", [TrackedValue("loss", 1.0, 5, NOW)])
    journal.close()
    assert journal.highest_step(1) == 5
    assert set(read_history(layout, 2)) == {"loss"}
