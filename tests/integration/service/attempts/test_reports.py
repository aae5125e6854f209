"""Worker reports are stored once and in order, and read back unchanged."""

import csv
import io
import json
from typing import Any

import pytest

from service.streaming import job_stream
from service.streaming import repository as stream_repository
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def series(world: World, job: str, **query: Any) -> dict[str, list[Any]]:
    answer = world.client.get(f"/v1/jobs/{job}/metrics", params=query).json()
    return {one["key"]: list(zip(one["steps"], one["values"], strict=True)) for one in answer["series"]}


def test_reported_points_are_returned_as_curves(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([("a", 1, 1.5), ("a", 2, 0.1 + 0.2), ("b", 1, 3.0)]).json() == {
        "accepted": 3,
        "duplicates": 0,
    }
    assert series(world, job) == {"a": [(1, 1.5), (2, 0.1 + 0.2)], "b": [(1, 3.0)]}
    assert series(world, job, keys="b") == {"b": [(1, 3.0)]}
    assert series(world, job, keys="a", from_step=2) == {"a": [(2, 0.1 + 0.2)]}


@pytest.mark.fault_scenario(22)
def test_repeated_delivery_changes_nothing(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for _ in range(3):
        worker.metrics([("a", 1, 1.0), ("a", 2, 2.0)])
    worker.metrics([("a", 2, 9.0), ("a", 3, 3.0)])
    assert series(world, job) == {"a": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_later_execution_hides_the_steps_it_repeats(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("a", step, 1.0) for step in range(1, 8)])
    worker.execution = 2
    worker.metrics([("a", step, 2.0) for step in range(5, 7)], resumed=4)
    assert series(world, job)["a"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 2.0), (6, 2.0)]
    worker.execution = 1
    worker.metrics([("a", 8, 1.0)])
    assert series(world, job)["a"][-1] == (6, 2.0), "late points of the first execution stay hidden"
    assert world.job(job)["attempt"]["resumed_from_step"] == 4


def test_execution_of_another_attempt_is_rejected(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.execution = 4
    answer = worker.metrics([("a", 1, 1.0)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stale_execution")


def test_long_curve_is_downsampled_to_its_extremes(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for start in range(0, 3000, 1000):
        worker.metrics([("a", step, 100.0 if step == 1234 else 1.0) for step in range(start, start + 1000)])
    one = world.client.get(f"/v1/jobs/{job}/metrics?max_points=50").json()["series"][0]
    assert one["truncated"] is True
    assert len(one["steps"]) <= 50
    assert max(one["values"]) == 100.0
    whole = world.client.get(f"/v1/jobs/{job}/metrics?max_points=5000").json()["series"][0]
    assert (len(whole["steps"]), whole["truncated"]) == (3000, False)


def test_csv_contains_exact_values(world: World) -> None:
    job = world.submit()
    world.start(job).metrics([("a", 1, 0.1 + 0.2), ("a", 2, "NaN")])
    answer = world.client.get(f"/v1/jobs/{job}/metrics?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["key"], row["step"], row["value"]) for row in rows] == [
        ("a", "1", "0.30000000000000004"),
        ("a", "2", "nan"),
    ]


def test_worker_event_is_stored_once(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    event = {"sequence": 3, "type": "note", "message": "hello", "time": "2026-01-01T00:00:00Z"}
    for _ in range(2):
        assert worker.post("events", {"execution": 1, "events": [event]}).status_code == 200
    rows = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert [e["message"] for e in rows if e["type"] == "worker.note"] == ["Hello"]


def test_run_that_stands_still_has_the_reason_as_its_message(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    text = "Rank 1 on gpu-1 is in step 3 (forward): a signal or a debugger has stopped it"

    def report(sequence: int, type_: str, message: str, **data: str) -> tuple[str, str | None]:
        event = {"sequence": sequence, "type": type_, "message": message, "data": data}
        event["time"] = world.clock().isoformat()
        assert worker.post("events", {"execution": 1, "events": [event]}).status_code == 200
        world.tick()
        resource = world.job(job)
        return resource["status_message"], (resource["condition"] or {}).get("code")

    suspected = report(1, "stall_suspected", f"No progress for 22 s. {text}", title="No progress for 22 s", text=text)
    assert suspected == (f"Running. No progress for 22 s. {text}", "standing_still")
    over = report(2, "stall_over", "The ranks make progress again, after 61 s")
    assert over == ("Running: the ranks make progress again.", None)


def test_checkpoints_are_listed_until_retention_deletes_them(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(10, metrics={"eval/loss": 1.0})
    worker.checkpoint(20)
    worker.checkpoint(30, removed_steps=[10])
    rows = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    assert [c["step"] for c in rows] == [20, 30]
    assert rows[0]["path"].endswith(f"{job}/checkpoints/step-0000000020")


def test_log_is_read_by_byte_offset(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.log("0", 0, b"one\ntwo\n").json() == {"next_offset": 8}
    assert worker.log("0", 4, b"two\nthree\n").json() == {"next_offset": 14}, "an overlap is not stored twice"
    gap = worker.log("0", 99, b"x")
    assert (gap.status_code, gap.json()["next_offset"], gap.json()["error"]["code"]) == (409, 14, "log_offset")
    whole = world.client.get(f"/v1/jobs/{job}/logs")
    assert (whole.text, whole.headers["X-Trainyard-Next-Offset"]) == ("one\ntwo\nthree\n", "14")
    assert world.client.get(f"/v1/jobs/{job}/logs?offset=9").text == "hree\n"
    tail = world.client.get(f"/v1/jobs/{job}/logs?tail=1")
    assert (tail.text, tail.headers["X-Trainyard-Offset"]) == ("three\n", "8")
    other = world.client.get(f"/v1/jobs/{job}/logs?rank=7")
    assert (other.status_code, other.json()["error"]["message"]) == (
        404,
        "there is no log of rank 7 in attempt 1; logs exist for: 0",
    )


def test_log_of_a_missing_attempt_is_not_found(world: World) -> None:
    job = world.submit()
    answer = world.client.get(f"/v1/jobs/{job}/logs?attempt=7")
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "the job has no attempt 7")


@pytest.mark.databases("sqlite", "postgres")
def test_log_accepts_any_bytes_and_is_bounded(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.log("launch", 0, b"\xff\x00\x1b[31mred")
    answer = world.client.get(f"/v1/jobs/{job}/logs?rank=launch")
    assert answer.content == b"\xff\x00\x1b[31mred"
    assert answer.headers["x-content-type-options"] == "nosniff"
    object.__setattr__(world.settings, "log_limit", 20)
    worker.log("launch", 10, b"y" * 30)
    assert worker.log("launch", 40, b"z" * 30).json() == {"next_offset": 70}
    answer = world.client.get(f"/v1/jobs/{job}/logs?rank=launch")
    assert answer.content.endswith(b"bytes of this log were dropped]\n" + b"z" * 30)
    assert (answer.headers["x-trainyard-next-offset"], len(answer.content)) == ("70", 70), "offsets stay what they are"
    assert world.client.get(f"/v1/jobs/{job}/logs?rank=launch&offset=50").content == b"z" * 20
    assert world.client.get(f"/v1/jobs/{job}/logs?rank=launch&tail=1").content == b"z" * 30


def test_spool_and_logs_are_ingested_before_the_final_status(world: World) -> None:
    from trainyard.contract.wire.reports import MetricsBatch
    from trainyard.contract.wire.spool import format_record

    job = world.submit()
    worker = world.start(job)
    folder = world.folder(job)
    batches = [
        MetricsBatch.model_validate(
            {
                "execution": 1,
                "resumed_from_step": 0,
                "points": [{"key": "a", "step": step, "value": step / 2, "time": "2026-01-01T00:00:00Z"}],
            }
        )
        for step in (1, 2, 3)
    ]
    worker.metrics([("a", 1, 0.5)])
    records = [format_record(n, "metrics", batch) for n, batch in enumerate(batches)]
    folder.spool_file(1).write_bytes(b"".join(records) + b'{"seq": 3, "cr')
    (folder.logs / "rank-0.log").write_bytes(b"said\nunsaid\n")
    worker.log("0", 0, b"said\n")
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert series(world, job)["a"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert world.client.get(f"/v1/jobs/{job}/logs").text == "said\nunsaid\n"


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("restored", [True, False])
def test_acknowledged_spool_is_read_again_after_a_restore(world: World, restored: bool) -> None:
    from trainyard.contract.wire.reports import MetricsBatch
    from trainyard.contract.wire.spool import format_record

    job = world.submit()
    worker = world.start(job)
    folder = world.folder(job)
    point = {"key": "a", "step": 1, "value": 1, "time": "2026-01-01T00:00:00Z"}
    batch = MetricsBatch.model_validate({"execution": 1, "resumed_from_step": 0, "points": [point]})
    folder.spool_file(1).write_bytes(format_record(0, "metrics", batch))
    folder.spool_acknowledged(1).write_text(str(folder.spool_file(1).stat().st_size))
    if restored:
        (world.settings.runs / ".restored").touch()
    worker.end("completed")
    world.tick()
    assert series(world, job) == ({"a": [(1, 1.0)]} if restored else {})


def test_invalid_spooled_record_does_not_stop_the_others(world: World) -> None:
    from trainyard.contract.wire.reports import MetricsBatch
    from trainyard.contract.wire.spool import format_record

    job = world.submit()
    worker = world.start(job)
    folder = world.folder(job)
    batch = {"resumed_from_step": 0, "points": [{"key": "a", "step": 1, "value": 1, "time": "2026-01-01T00:00:00Z"}]}
    foreign = format_record(0, "metrics", MetricsBatch.model_validate({**batch, "execution": 99}))
    good = format_record(1, "metrics", MetricsBatch.model_validate({**batch, "execution": 1}))
    folder.spool_file(1).write_bytes(foreign + good)
    worker.end("completed")
    world.tick()
    assert series(world, job) == {"a": [(1, 1.0)]}


def messages(text: str) -> list[tuple[int, str, Any]]:
    rows = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            rows.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return rows


@pytest.mark.fault_scenario(30)
def test_stream_replays_from_any_event_id_and_ends(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("a", 1, 1.0), ("a", 2, "NaN")])
    worker.log("0", 0, "grüße\n".encode())
    worker.checkpoint(2)
    worker.end("completed")
    world.tick()
    everything = messages(world.client.get(f"/v1/jobs/{job}/stream").text)
    assert [kind for _, kind, _ in everything] == [
        *("event", "status", "status", "event", "status", "status", "metrics", "log", "checkpoint", "status"),
    ]
    assert [event_id for event_id, _, _ in everything] == sorted({event_id for event_id, _, _ in everything})
    assert everything[6][2]["points"][1]["value"] == "NaN"
    assert everything[7][2] == {"attempt": 1, "rank": "0", "offset": 0, "text": "grüße\n"}
    assert everything[-1][2]["status"] == "succeeded"
    for cut in range(len(everything) - 1):
        event_id = everything[cut][0]
        rest = messages(world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": str(event_id)}).text)
        assert rest == everything[cut + 1 :]
    over = world.client.get(f"/v1/jobs/{job}/stream?after={everything[-1][0]}")
    assert over.status_code == 204
    quiet = messages(world.client.get(f"/v1/jobs/{job}/stream?logs=false").text)
    assert "log" not in {kind for _, kind, _ in quiet}


def test_long_stream_is_read_in_parts_without_a_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "_MAX_POINTS", 40)
    monkeypatch.setattr(stream_repository, "_MAX_LOG_CHUNKS", 10)
    job = world.submit()
    worker = world.start(job)
    for start in range(0, 90, 10):
        worker.metrics([("a", step, 1.0) for step in range(start, start + 10)])
    for n in range(15):
        worker.log("0", n * 2, b"x\n")
    worker.end("completed")
    world.tick()
    everything = messages(world.client.get(f"/v1/jobs/{job}/stream").text)
    steps = [point["step"] for _, kind, data in everything if kind == "metrics" for point in data["points"]]
    assert steps == list(range(90))
    assert [data["offset"] for _, kind, data in everything if kind == "log"] == list(range(0, 30, 2))


def test_log_of_an_existing_rank_is_empty_before_its_first_append(world: World) -> None:
    job_id = world.submit()
    worker = world.start(job_id)
    worker.log("0", 0, b"one line\n")
    for rank in ("1", "launch"):
        answer = world.client.get(f"/v1/jobs/{job_id}/logs?rank={rank}&tail=10")
        assert (answer.status_code, answer.text) == (200, "")
    assert world.client.get(f"/v1/jobs/{job_id}/logs?rank=2").status_code == 404


def test_job_sequence_is_an_event_id_of_its_stream(world: World) -> None:
    job_id = world.submit()
    worker = world.start(job_id)
    before = world.job(job_id)["sequence"]
    worker.metrics([("train/loss", 1, 0.5)])
    after = world.job(job_id)["sequence"]
    assert after > before
    worker.end("completed")
    world.tick()
    with world.client.stream("GET", f"/v1/jobs/{job_id}/stream?after={before}") as answer:
        text = "".join(answer.iter_text())
    assert text.removeprefix("retry: 1000\n\n").startswith(f"id: {after}\nevent: metrics")
