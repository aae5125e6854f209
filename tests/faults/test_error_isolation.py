"""An error in one job does not affect other jobs, and does not end a thread of the reconciler."""

from pathlib import Path
from typing import Any

import pytest

from service.core.untrusted_files import UntrustedFiles
from service.db.models import Job
from service.reconciler import spool_ingest
from tests.support.world import World
from trainyard.contract.wire.reports import MAX_LOG_CHUNK, MetricsBatch, Point, Progress
from trainyard.contract.wire.spool import format_record

pytestmark = pytest.mark.databases("postgres")

BROKEN = "Internal error (ValidationError). The service retries; its log has the details."


def test_an_error_in_one_job_does_not_stop_the_others(world: World) -> None:
    broken, other = world.submit(), world.submit()
    world.tick()
    with world.database.write() as session:
        session.query(Job).filter(Job.id == broken).update(
            {"spec": {**world.job(broken)["spec"], "restart": {"max_retries": -1}}}
        )
    world.scheduler.set_states("ended")
    world.tick()
    assert (world.status(broken), world.job(broken)["status_message"]) == ("pending", BROKEN)
    assert world.job(other)["attempt"]["number"] == 1
    assert world.status(other) == "queued", "to be continued"
    assert world.app_state.metrics._tick_errors._value.get() == 1


def test_unreadable_snapshot_delays_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster() -> None:
        raise IndexError("a column that nobody knows")

    monkeypatch.setattr(world.scheduler, "cluster", cluster)
    job = world.submit()
    world.tick()
    assert world.status(job) == "pending"


def spooled(world: World, *keys: str) -> bytes:
    points = [Point(key=key, step=1, value=1.0, time=world.clock()) for key in keys]
    batch = MetricsBatch(
        execution=1, resumed_from_step=0, points=tuple(points), progress=Progress(step=1, total_steps=9)
    )
    return format_record(0, "metrics", batch)


def test_metrics_over_the_limit_stay_in_the_spool(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.metrics.ingest.writer.MAX_KEYS", 2)
    job = world.submit()
    worker = world.start(job)
    world.folder(job).spool_file(1).write_bytes(spooled(world, "a", "b", "c") + spooled(world, "a"))
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert world.job(job)["progress"]["step"] == 1, "what comes after it is taken"


@pytest.mark.parametrize("planted", ["-5", "link"])
def test_a_job_cannot_set_the_services_read_position(world: World, planted: str, tmp_path: Path) -> None:
    job = world.submit()
    worker = world.start(job)
    folder = world.folder(job)
    folder.spool_file(1).write_bytes(spooled(world, "a"))
    acknowledged = folder.spool_acknowledged(1)
    if planted == "link":
        (tmp_path / "elsewhere").write_text(str(folder.spool_file(1).stat().st_size))
        acknowledged.symlink_to(tmp_path / "elsewhere")
    else:
        acknowledged.write_text(planted)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert world.job(job)["progress"]["step"] == 1


@pytest.mark.parametrize("name", ["rank-12345678901234567890.log", "rank-².log"])
def test_log_file_of_no_rank_is_ignored(world: World, name: str) -> None:
    job = world.submit()
    worker = world.start(job)
    (world.folder(job).logs / name).write_text("text")
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"


def test_unreadable_log_is_skipped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = UntrustedFiles.read

    def deny(files: UntrustedFiles, path: Path, offset: int, size: int) -> bytes:
        if path.suffix == ".log":
            raise PermissionError(13, "Permission denied")
        return real(files, path, offset, size)

    job = world.submit()
    worker = world.start(job)
    (world.folder(job).logs / "rank-0.log").write_text("text")
    monkeypatch.setattr(UntrustedFiles, "read", deny)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"


def test_only_the_stored_part_of_an_unsent_log_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick must not read a whole file of any length, because all other jobs wait for it."""
    limit = 2 * MAX_LOG_CHUNK
    world.app_state.settings = world.settings.model_copy(update={"log_limit": limit})
    world.reconciler = world.new_reconciler("one")
    job = world.submit()
    worker = world.start(job)
    worker.log("0", 0, b"first\n")
    path = world.folder(job).rank_log(0)
    with path.open("wb") as file:
        file.truncate(100 * limit)
        file.seek(0, 2)
        file.write(b"the end\n")
    read: list[int] = []

    real = UntrustedFiles.read

    def counting(files: UntrustedFiles, path: Path, offset: int, size: int) -> bytes:
        data = real(files, path, offset, size)
        if path.suffix == ".log":
            read.append(len(data))
        return data

    monkeypatch.setattr(UntrustedFiles, "read", counting)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert sum(read) == limit
    shown = world.client.get(f"/v1/jobs/{job}/logs?rank=0&tail=1").content
    assert shown.endswith(b"the end\n")
    first = world.client.get(f"/v1/jobs/{job}/logs?rank=0&offset=0").content
    assert first.startswith(b"[trainyard: the first ")


def test_oversized_corrupt_spool_is_read_up_to_the_corruption(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    point = Point(key="train/loss", step=1, value=1.0, time=world.clock())
    batch = MetricsBatch(execution=1, resumed_from_step=0, points=(point,))
    path = world.folder(job).spool_file(1)
    path.write_bytes(format_record(1, "metrics", batch))
    with path.open("ab") as file:
        file.truncate(1 << 40)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss").json()["series"]
    assert series["steps"] == [1]


def test_record_that_causes_an_internal_error_is_put_aside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)
    point = Point(key="train/loss", step=1, value=1.0, time=world.clock())
    batches = [
        MetricsBatch(execution=1, resumed_from_step=0, points=(point.model_copy(update={"step": n}),))
        for n in (1, 2, 3)
    ]
    lines = [format_record(number, "metrics", batch) for number, batch in enumerate(batches)]
    world.folder(job).spool_file(1).write_bytes(b"".join(lines))
    store = spool_ingest.store_batch

    def fail_for_one(database: Any, attempt_id: str, batch: MetricsBatch, *others: Any, **options: Any) -> Any:
        if batch.points[0].step == 2:
            raise RuntimeError("a bug")
        return store(database, attempt_id, batch, *others, **options)

    monkeypatch.setattr(spool_ingest, "store_batch", fail_for_one)
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss").json()["series"]
    assert series["steps"] == [1, 3]
    rejected = [
        event
        for event in world.client.get(f"/v1/jobs/{job}/events").json()["data"]
        if event["type"] == "reports_rejected"
    ]
    assert [event["data"]["count"] for event in rejected] == [1]
