"""The size and cost of resources, streams and exports of jobs with very many metrics."""

import json

import pytest

from service.metrics.queries import MAX_SERIES, CurveQuery, read_curves
from service.metrics.repository import CurveRepository
from service.streaming.broadcaster import StreamOffset
from service.streaming.sources import GlobalSource
from tests.support.world import World
from trainyard.contract.wire.jobs import MAX_SHOWN_METRICS
from trainyard.contract.wire.reports import MAX_POINTS

pytestmark = pytest.mark.databases("sqlite")


def many_metrics(world: World, count: int) -> str:
    job_id = world.submit()
    worker = world.start(job_id)
    names = ["train/loss", *(f"a/{number:05}/{'x' * 200}" for number in range(count - 1))]
    for start in range(0, count, MAX_POINTS):
        points = [(name, 1, 1.0) for name in names[start : start + MAX_POINTS]]
        assert worker.metrics(points).status_code == 200
    return job_id


def test_resources_carry_a_bounded_number_of_metrics(world: World) -> None:
    job_id = many_metrics(world, 3000)
    job = world.job(job_id)
    assert (len(job["metrics"]), job["metrics_omitted"]) == (MAX_SHOWN_METRICS, 3000 - MAX_SHOWN_METRICS)
    assert job["metrics"]["train/loss"] == 1.0
    for path in ("/v1/jobs", f"/v1/jobs/{job_id}"):
        assert len(world.client.get(path).content) < 50_000
    source = GlobalSource(world.database, world.settings.runs, world.clock)
    source.newest_offset()
    texts = [item.text for item in source.read(StreamOffset(0), True).items]
    (message,) = [text for text in texts if "event: metrics" in text]
    assert len(json.loads(message.partition("data: ")[2])["values"]) == MAX_SHOWN_METRICS


def test_the_loss_of_a_program_is_named_and_shown(world: World) -> None:
    job_id = world.submit()
    worker = world.start(job_id)
    points = [(f"a/{number:03}", 1, 1.0) for number in range(2 * MAX_SHOWN_METRICS)]
    progress = {"step": 1, "total_steps": None}
    assert worker.metrics([*points, ("z/Loss", 1, 0.5)], progress=progress).status_code == 200
    job = world.job(job_id)
    assert (job["loss_metric"], job["metrics"]["z/Loss"]) == ("z/Loss", 0.5)
    assert (job["progress"]["total_steps"], job["progress"]["eta_seconds"]) == (None, None)
    source = GlobalSource(world.database, world.settings.runs, world.clock)
    source.newest_offset()
    (text,) = [item.text for item in source.read(StreamOffset(0), True).items if "event: metrics" in item.text]
    assert json.loads(text.partition("data: ")[2])["loss_metric"] == "z/Loss"


def test_response_has_a_bounded_number_of_curves(world: World) -> None:
    job_id = many_metrics(world, MAX_SERIES + 10)
    answer = world.client.get(f"/v1/jobs/{job_id}/metrics").json()
    assert (len(answer["series"]), answer["series_omitted"]) == (MAX_SERIES, 10)
    assert answer["series"][0]["key"] == "train/loss"
    last = f"a/{MAX_SERIES + 8:05}/{'x' * 200}"
    selected = world.client.get(f"/v1/jobs/{job_id}/metrics", params={"keys": last}).json()
    assert [len(series["steps"]) for series in selected["series"]] == [1]
    assert selected["series_omitted"] == 0
    assert world.client.get(f"/v1/jobs/{job_id}/metrics?format=csv").text.count("\n") == MAX_SERIES + 11


def test_points_of_all_curves_together_are_bounded(world: World) -> None:
    job_id = world.submit()
    points = [(name, step, 1.0) for name in ("a", "b") for step in range(100)]
    assert world.start(job_id).metrics(points).status_code == 200
    query = CurveQuery(max_total=60)
    answer = read_curves(world.app_state.database, job_id, query, world.clock())
    assert [(len(series.steps) <= 30, series.truncated) for series in answer.series] == [(True, True)] * 2


def test_csv_export_reads_each_name_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = many_metrics(world, 200)
    rows = 0
    keys = CurveRepository.keys

    def counted(self: CurveRepository, *arguments: object) -> dict[str, int]:
        nonlocal rows
        result = keys(self, *arguments)  # type: ignore[arg-type]
        rows += len(result)
        return result

    monkeypatch.setattr(CurveRepository, "keys", counted)
    text = world.client.get(f"/v1/jobs/{job_id}/metrics?format=csv").text
    assert text.count("\n") == 201
    assert rows <= 3 * 200
