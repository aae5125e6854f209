"""Media that a program reports are listed by key and step, of the executions that are visible."""

from typing import Any

import pytest

from service.attempts.service import MEDIA_DROPPED
from service.media import repository
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.media import MediaReport
from trainyard.contract.wire.spool import format_record

pytestmark = pytest.mark.databases("sqlite")
TIME = "2026-01-01T00:00:00Z"


def item(key: str, step: int, path: str, **fields: Any) -> dict[str, Any]:
    return {"key": key, "step": step, "type": "image", "path": path, "time": TIME, **fields}


def send(worker: FakeWorker, *items: dict[str, Any], record: int | None = None, spool: int = 1) -> int:
    source = {} if record is None else {"source": {"spool": spool, "records": [[record, len(items)]]}}
    return worker.post("media", {"execution": worker.execution, "items": items, **source}).status_code


def listed(world: World, job: str, **query: Any) -> list[tuple[str, int, int, str | None]]:
    answer = world.client.get(f"/v1/jobs/{job}/media", params=query)
    assert answer.status_code == 200
    return [(one["key"], one["step"], one["position"], one["path"]) for one in answer.json()["data"]]


def keys(world: World, job: str) -> list[tuple[str, str, int, int, int]]:
    answer = world.client.get(f"/v1/jobs/{job}/media/keys").json()["data"]
    return [(one["key"], one["type"], one["count"], one["first_step"], one["last_step"]) for one in answer]


@pytest.fixture
def job(world: World) -> str:
    return world.submit()


@pytest.mark.databases("sqlite", "postgres")
def test_media_are_listed_and_filtered(world: World, job: str) -> None:
    worker = world.start(job)
    drawn = {"bins": [0, 1, 2], "values": [3, 4]}
    bars = {"key": "w", "step": 2, "type": "histogram", "histogram": drawn, "time": TIME}
    images = [item("größe, 1", step, f"{step}.png", caption="ü", width=4, position=1) for step in (1, 5)]
    assert send(worker, *images, bars) == 200
    assert listed(world, job) == [("größe, 1", 1, 1, "1.png"), ("größe, 1", 5, 1, "5.png"), ("w", 2, 0, None)]
    assert listed(world, job, key="größe, 1", from_step=2) == listed(world, job, type="image", from_step=3, to_step=5)
    assert listed(world, job, key="other") == listed(world, job, to_step=0) == []
    assert keys(world, job) == [("größe, 1", "image", 2, 1, 5), ("w", "histogram", 1, 2, 2)]
    first = world.client.get(f"/v1/jobs/{job}/media?limit=1").json()
    assert first["has_more"]
    assert (first["data"][0]["caption"], first["data"][0]["width"]) == ("ü", 4)
    rest = world.client.get(f"/v1/jobs/{job}/media", params={"after": first["last_id"], "type": "histogram"}).json()
    assert [one["histogram"] for one in rest["data"]] == [drawn]


@pytest.mark.parametrize("order", [(0, 3, 7), (7, 3, 0), (3, 7, 0, 7, 3)])
def test_the_item_that_was_logged_last_stays_in_any_order(world: World, job: str, order: tuple[int, ...]) -> None:
    worker = world.start(job)
    for record in order:
        items = [item("a", 1, f"{record}-{n}.png", width=record + n + 1) for n in range(2)]
        assert send(worker, *items, record=record) == 200
    assert listed(world, job) == [("a", 1, 0, "7-1.png")]
    assert world.client.get(f"/v1/jobs/{job}/media").json()["data"][0]["width"] == 9


def test_the_first_item_stays_between_two_spools_and_without_a_record(world: World, job: str) -> None:
    worker = world.start(job)
    assert send(worker, item("a", 1, "1.png"), record=5, spool=1) == 200
    assert send(worker, item("a", 1, "2.png"), record=9, spool=2) == 200
    assert send(worker, item("a", 1, "3.png"), item("b", 1, "4.png")) == 200
    assert send(worker, item("b", 1, "5.png")) == 200
    assert listed(world, job) == [("a", 1, 0, "1.png"), ("b", 1, 0, "4.png")]


def test_the_spool_is_read_with_the_numbers_of_its_records(world: World, job: str) -> None:
    worker = world.start(job)
    assert send(worker, item("a", 1, "new.png"), item("b", 1, "old.png"), record=4) == 200
    reports = {2: item("a", 1, "old.png"), 5: item("b", 1, "new.png")}
    lines = [
        format_record(number, "media", MediaReport.model_validate({"execution": 1, "items": [one]}))
        for number, one in reports.items()
    ]
    world.folder(job).tracker_spool(1, 0).write_bytes(b"".join(lines))
    worker.end("completed")
    world.tick()
    assert [path for *_, path in listed(world, job)] == ["new.png", "new.png"]


def test_a_source_of_other_items_is_refused(world: World, job: str) -> None:
    source = {"records": [[1, 2]]}
    answer = world.start(job).post("media", {"execution": 1, "items": [item("a", 1, "1.png")], "source": source})
    assert (answer.status_code, "counts 2 items; the report has 1" in answer.text) == (422, True)


def test_steps_after_a_resumed_one_are_hidden(world: World, job: str) -> None:
    worker = world.start(job)
    worker.metrics([("loss", 1, 1.0)])
    send(worker, *(item("a", step, f"first-{step}.png") for step in (5, 10, 15)))
    worker.execution = 2
    worker.metrics([("loss", 11, 1.0)], resumed=10)
    send(worker, item("a", 10, "second-10.png"))
    assert listed(world, job) == [("a", 5, 0, "first-5.png"), ("a", 10, 0, "second-10.png")]
    assert keys(world, job) == [("a", "image", 2, 5, 10)]


def test_media_beyond_the_limits_are_stated_once(world: World, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_JOB_MEDIA", 3)
    monkeypatch.setattr(repository, "MAX_MEDIA_KEYS", 2)
    worker = world.start(job)
    send(worker, item("a", 1, "1.png"), item("b", 1, "2.png"), item("c", 1, "3.png"))
    send(worker, item("a", 2, "4.png"), item("a", 3, "5.png"), item("a", 1, "1.png"))
    assert [path for *_, path in listed(world, job)] == ["1.png", "2.png", "4.png"]
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert [event["level"] for event in events if event["type"] == MEDIA_DROPPED] == ["warning"]


@pytest.mark.parametrize("path", ["../spec.json", "/etc/passwd", "a/../../b", "."])
def test_a_path_outside_of_the_artifacts_is_refused(world: World, job: str, path: str) -> None:
    assert send(world.start(job), item("a", 1, path)) == 422


def test_an_item_has_either_a_file_or_a_histogram(world: World, job: str) -> None:
    worker = world.start(job)
    assert send(worker, {**item("a", 1, "1.png"), "type": "histogram"}) == 422
    for drawn in ({"bins": [0, 1], "values": [1, 2]}, {"bins": [1, 0], "values": [1]}):
        assert send(worker, {"key": "a", "step": 1, "type": "histogram", "histogram": drawn, "time": TIME}) == 422


@pytest.mark.databases("sqlite", "postgres")
def test_media_are_deleted_with_their_job(world: World, job: str) -> None:
    worker = world.start(job)
    send(worker, item("a", 1, "1.png"))
    worker.end("completed")
    world.tick()
    assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
    assert world.client.get(f"/v1/jobs/{job}/media").status_code == 404
    world.run_maintenance()
    with world.database.read() as session:
        assert session.query(repository.Media).count() == 0
