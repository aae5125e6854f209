"""Reports of a hostile worker cannot impersonate the service or break clients."""

import json
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from tests.support.readers import read_streams
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.spool import format_record
from trainyard.contract.wire.worker_events import WORKER_PREFIX

TIME = "2026-01-01T00:00:00Z"


def send(worker: FakeWorker, type_: str, *, sequence: int = 2001, **extra: Any) -> Any:
    event = {"sequence": sequence, "type": type_, "message": "x", "time": TIME, **extra}
    return worker.post("events", {"execution": 1, "events": [event]})


SERVICE_EVENTS = ["status", "created", "profile_requested", "retry_requested", "cancel_requested", "resolved", "forked"]


@pytest.mark.databases("sqlite")
def test_event_of_a_worker_is_no_event_of_the_service(world: World, subtests: pytest.Subtests) -> None:
    job = world.submit()
    worker = world.start(job)
    misleading = {"status": "succeeded", "reason": None, "steps": 1, "ranks": [0], "from": "x"}
    for sequence, (type_, data) in enumerate(product(SERVICE_EVENTS, ({}, misleading)), 2001):
        with subtests.test(type_, data=str(data)):
            assert send(worker, type_, sequence=sequence, data=data).status_code == 200
            newest = world.client.get(f"/v1/jobs/{job}/events?limit=1").json()["data"][0]
            assert (newest["type"], newest["data"]) == (f"{WORKER_PREFIX}{type_}", data)
            heartbeat = worker.post("heartbeat", {"execution": 1})
            assert (heartbeat.status_code, heartbeat.json()["profile"]) == (200, None)
    assert world.client.post(f"/v1/jobs/{job}/profile", json={}).status_code == 202
    text = read_streams(world, job)
    assert "succeeded" not in "".join(line for line in text.split("\n\n") if "event: status" in line)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert world.client.get(f"/v1/jobs/{job}/stream").status_code == 200


INCOMPLETE: list[tuple[str, Any, str | None]] = [
    ("training_started", {}, "data.step"),
    ("training_resumed", {"step": "7", "total_steps": 9}, "data.step"),
    ("training_resumed", {"step": 2**60, "total_steps": 9}, "data.step"),
    ("profile_written", {}, "data.request"),
    ("profile_dropped", {"request": True}, "data.request"),
    ("comm_check", {"backend": "gloo"}, "data.world_size"),
    ("checkpoint_failed", {"step": -1}, "data.step"),
    ("restarted_in_place", {"rank": 0}, "data.type"),
    ("status.x", {}, None),
    ("x" * 49, {}, None),
]


@pytest.mark.databases("sqlite")
def test_known_event_without_its_data_is_refused(world: World, subtests: pytest.Subtests) -> None:
    worker = world.start(world.submit())
    for type_, data, field in INCOMPLETE:
        with subtests.test(type_, data=str(data)):
            answer = send(worker, type_, data=data)
            assert answer.status_code == 422
            assert field is None or field in answer.json()["error"]["message"]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return {"x": value}


EVENT_DATA = [
    ("{}", 200),
    ('{"x": NaN, "y": [Infinity, -Infinity], "z": 1e400}', 200),
    ('{"x": "\\ud800 \\u0000"}', 200),
    ('{"x": 9223372036854775807}', 200),
    ('{"x": 9223372036854775808}', 422),
    (f'{{"x": {"9" * 400}}}', 422),
    (json.dumps({"x": "y" * 70_000}), 422),
    (json.dumps({"x": [0] * 5000}), 422),
    (json.dumps(deep(400)), 400),
    ("[" * 50_000, 400),
]


def test_event_data_is_stored_and_readable_or_refused(world: World, subtests: pytest.Subtests) -> None:
    job = world.submit()
    worker = world.start(job)
    path, headers = f"/v1/attempts/{worker.attempt_id}/events", {"Content-Type": "application/json"}
    for number, (data, status) in enumerate(EVENT_DATA, 1):
        with subtests.test(data[:40]):
            message = f"Event {number}."
            event = f'{{"sequence":{number},"type":"note","message":"{message}","time":"{TIME}","data":{data}}}'
            body = f'{{"execution":1,"events":[{event}]}}'
            answer = worker.client.post(path, content=body, headers=headers)
            assert answer.status_code == status, answer.text[:300]
            assert world.client.get(f"/v1/jobs/{job}/events").status_code == 200
            text = read_streams(world, job)
            assert "worker.note" in text
            assert (message in text) == (status == 200)


def test_a_row_that_cannot_be_shown_is_skipped_by_all_streams(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    with world.database.write() as session:
        session.execute(sa.text("UPDATE events SET data = '{}' WHERE type = 'status'"))
    worker.checkpoint(3)
    assert "event: checkpoint" in read_streams(world, job)


class Raw(BaseModel):
    """A spool record whose body is not validated."""

    text: str

    def model_dump_json(self, **_: Any) -> str:
        return self.text


def spool(world: World, job: str, *records: tuple[str, Any]) -> None:
    lines = [format_record(n, kind, Raw(text=json.dumps(body))) for n, (kind, body) in enumerate(records)]  # type: ignore[arg-type]
    world.folder(job).spool_file(1).parent.mkdir(parents=True, exist_ok=True)
    world.folder(job).spool_file(1).write_bytes(b"".join(lines))


def checkpoint(step: int, time: str = TIME) -> dict[str, Any]:
    shared = {"execution": 1, "size_bytes": 1, "digest": "sha256:" + "0" * 64, "world_size": 1}
    return {**shared, "step": step, "time": time}


def event(type_: str, data: Any, time: str = TIME) -> dict[str, Any]:
    return {"execution": 1, "events": [{"sequence": 9, "type": type_, "message": "x", "data": data, "time": time}]}


def points(time: str, step: int = 1) -> dict[str, Any]:
    return {"execution": 1, "resumed_from_step": 0, "points": [{"key": "a", "step": step, "value": 1, "time": time}]}


BAD_RECORDS: list[tuple[str, Any]] = [
    ("checkpoint", checkpoint(1, "2026-01-01T00:00:00")),
    ("checkpoint", checkpoint(1, "0001-01-01T00:00:00+10:00")),
    ("checkpoint", checkpoint(2**53 + 1)),
    ("metrics", points("2026-01-01T00:00:00")),
    ("metrics", points("9999-12-31T23:59:59-10:00")),
    ("metrics", points(TIME, 2**62)),
    ("events", event("note", deep(150))),
    ("events", event("note", {"x": 10**30})),
    ("events", event("comm_check", {})),
    ("events", event("note", {}, "2026-01-01T00:00:00")),
    ("events", {}),
    ("metrics", []),
]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("record", BAD_RECORDS, ids=range(len(BAD_RECORDS)))
def test_bad_spool_record_is_put_aside_and_the_job_ends(world: World, record: tuple[str, Any]) -> None:
    job = world.submit()
    worker = world.start(job)
    spool(world, job, record, ("checkpoint", checkpoint(7)))
    worker.end("completed")
    world.tick(3)
    assert world.status(job) == "succeeded"
    assert [row["step"] for row in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]] == [7]
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    (rejected,) = [event for event in events if event["type"] == "reports_rejected"]
    assert (rejected["level"], rejected["data"]) == ("warning", {"attempt": 1, "count": 1})
    assert "event: status" in read_streams(world, job)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    "acknowledged", ["99999999999999999999", "9223372036854775807", "-5", "1_0", "\N{ARABIC-INDIC DIGIT THREE}"]
)
def test_bad_acknowledgement_does_not_hold_the_job(world: World, acknowledged: str) -> None:
    job = world.submit()
    worker = world.start(job)
    spool(world, job, ("checkpoint", checkpoint(7)))
    world.folder(job).spool_acknowledged(1).write_text(acknowledged)
    worker.end("completed")
    world.tick(2)
    assert world.status(job) == "succeeded"


@pytest.mark.databases("sqlite")
def test_unexpected_error_in_a_record_lets_a_cancelled_job_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)
    spool(world, job, ("checkpoint", checkpoint(7)))

    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("service.attempts.service._update_checkpoint", fail)
    assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    worker.end("user_cancelled")
    world.tick(2)
    assert world.status(job) == "cancelled"


def test_unstorable_value_is_refused_without_a_retry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that passes validation but not the database is a permanent refusal of that batch alone."""
    from service.metrics.ingest.decode import PointBatch

    worker = world.start(world.submit())
    queue = world.app_state.ingest_queue
    monkeypatch.setattr(
        "service.api.routes.worker.decode_batch", lambda *_: PointBatch(1, 0, [("a", 2**70, 1.0, 0, 0, None)])
    )
    answer = worker.metrics([("a", 1, 1.0)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "value_not_storable")
    good = PointBatch(1, 0, [("a", 1, 1.0, 0, 0, None)])
    bad = PointBatch(1, 0, [("a", 2**70, 1.0, 0, 0, None)])

    class Entry:
        def __init__(self, batch: PointBatch) -> None:
            self.attempt_id, self.batch = worker.attempt_id, batch

    outcomes = queue._write([Entry(good), Entry(bad), Entry(good)])  # type: ignore[list-item]
    assert [getattr(outcome, "stored", None) for outcome in outcomes] == [1, None, 0]
