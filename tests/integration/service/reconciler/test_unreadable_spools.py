"""Spools and logs that cannot be read: the job ends, other jobs do not wait, and what is lost is an event."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from service.core.untrusted_files import UntrustedFiles
from service.reconciler import run_dir, spool_ingest
from tests.support.cpu_limit import at_most
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.reports import CheckpointReport, FinishRecord
from trainyard.contract.wire.spool import format_record, parse_spool

pytestmark = pytest.mark.databases("sqlite")


def record(world: World, step: int) -> bytes:
    report = CheckpointReport(
        execution=1, step=step, size_bytes=1, digest="sha256:" + "0" * 64, world_size=1, time=world.clock()
    )
    return format_record(step, "checkpoint", report)


def start_with_spool(world: World, *steps: int) -> tuple[str, FakeWorker]:
    """Start a job whose worker has left checkpoint reports of these steps in its spool."""
    job = world.submit()
    worker = world.start(job)
    world.folder(job).spool_file(1).write_bytes(b"".join(record(world, step) for step in steps))
    return job, worker


def stored_steps(world: World, job: str) -> list[int]:
    return [row["step"] for row in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]]


def rejections(world: World, job: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    return [event for event in events if event["type"] == "reports_rejected"]


def failed_ticks(world: World) -> float:
    return float(world.app_state.metrics._tick_errors._value.get())


def failing_open(number: int, failures: list[int]) -> Callable[[UntrustedFiles, Path], BinaryIO]:
    """Fail with the error as often as `failures[0]` says."""
    real = UntrustedFiles.open_file

    def fail(files: UntrustedFiles, path: Path) -> BinaryIO:
        if path.suffix == ".jsonl" and failures[0] > 0:
            failures[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(files, path)

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_filesystem_error_that_passes_loses_no_report(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    job, worker = start_with_spool(world, 7)
    monkeypatch.setattr(UntrustedFiles, "open_file", failing_open(number, [3]))
    worker.end("completed")
    world.tick()
    assert (world.status(job), failed_ticks(world)) == ("running", 0)
    world.tick(3)
    assert (world.status(job), stored_steps(world, job), rejections(world, job)) == ("succeeded", [7], [])


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_filesystem_error_that_remains_holds_no_job_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    job, worker = start_with_spool(world, 7)
    (world.folder(job).logs / "rank-0.log").write_text("the log\n")
    monkeypatch.setattr(UntrustedFiles, "open_file", failing_open(errno.EIO, [10**9]))
    if cancelled:
        assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    worker.end("user_cancelled" if cancelled else "completed")
    world.tick()
    assert world.status(job) == "running"
    world.clock.advance(spool_ingest.RETRY_SECONDS)
    world.tick()
    assert world.status(job) == ("cancelled" if cancelled else "succeeded")
    (rejected,) = rejections(world, job)
    assert "Input/output error" in rejected["message"]
    assert failed_ticks(world) == 0
    assert world.client.get(f"/v1/jobs/{job}/logs?rank=0&tail=1").text == "the log\n"


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EISDIR])
def test_a_file_that_can_never_be_read_is_put_aside_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    job, worker = start_with_spool(world, 7)
    monkeypatch.setattr(UntrustedFiles, "open_file", failing_open(number, [10**9]))
    worker.end("completed")
    world.tick()
    assert (world.status(job), len(rejections(world, job)), failed_ticks(world)) == ("succeeded", 1, 0)


def acknowledge(world: World, job: str, count: int) -> list[int]:
    """Acknowledge records of the spool; return the offsets at which all of them begin."""
    spool = world.folder(job).spool_file(1)
    records = list(parse_spool(spool))
    spool.with_suffix(".acknowledged").write_text(str(records[count - 1].end))
    return [record.start for record in records]


def test_records_that_the_worker_put_aside_are_read(world: World) -> None:
    job, worker = start_with_spool(world, 5, 6, 7, 8)
    starts = acknowledge(world, job, 3)
    world.folder(job).spool_file(1).with_suffix(".put_aside").write_text(f"{starts[1]}\n")
    worker.end("completed")
    world.tick()
    assert (world.status(job), stored_steps(world, job), rejections(world, job)) == ("succeeded", [6, 8], [])


def test_falsified_list_of_records_harms_nothing(world: World) -> None:
    job, worker = start_with_spool(world, 5, 6, 7)
    starts = acknowledge(world, job, 2)
    listed = f"{starts[0] + 1}\n-3\nx\n{10**30}\n{starts[1]}\n{starts[1]}\n"
    world.folder(job).spool_file(1).with_suffix(".put_aside").write_text(listed)
    worker.end("completed")
    world.tick()
    assert (world.status(job), stored_steps(world, job)) == ("succeeded", [6, 7])
    (rejected,) = rejections(world, job)
    assert rejected["data"]["count"] == 1


def plant_fifo(path: Path) -> None:
    os.mkfifo(path)


def plant_folder(path: Path) -> None:
    path.mkdir()


def plant_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def plant_zeros(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 30)


def plant_endless_line(path: Path) -> None:
    path.write_bytes(b"x" * (17 << 20))


def test_planted_files_hold_no_job(world: World) -> None:
    world.app_state.settings = world.settings.model_copy(update={"log_limit": 4096})
    world.reconciler = world.new_reconciler("one")
    job = world.submit(gpus=4)
    worker = world.start(job)
    layout = world.folder(job)
    for number, plant in enumerate([plant_fifo, plant_folder, plant_link, plant_zeros, plant_endless_line]):
        plant(layout.spool_file(number + 1))
        if number < 4:
            plant(layout.rank_log(number))
    worker.end("completed")
    world.tick()
    assert (world.status(job), failed_ticks(world)) == ("succeeded", 0)
    assert [event["data"]["count"] for event in rejections(world, job)] == [2]


def test_a_spool_whose_name_is_not_utf8_holds_no_job(world: World) -> None:
    job, worker = start_with_spool(world, 7)
    for name in (b"execution-\xff.jsonl", b"execution-\n\x1b[2J.jsonl", b"execution-%2F.jsonl"):
        (Path(os.fsdecode(os.fsencode(world.folder(job).spool) + b"/" + name))).write_bytes(b"no record\n")
    worker.end("completed")
    world.tick()
    assert (world.status(job), stored_steps(world, job), failed_ticks(world)) == ("succeeded", [7], 0)


@pytest.mark.parametrize("folder", ["spool", "logs"])
def test_a_linked_folder_is_not_read(world: World, folder: str) -> None:
    """The reports and logs of one job are not those of another one that links to them."""
    other, _ = start_with_spool(world, 7)
    world.folder(other).rank_log(0).write_text("the log of another job\n")
    job = world.submit()
    worker = world.start(job)
    planted = getattr(world.folder(job), folder)
    planted.rmdir()
    planted.symlink_to(getattr(world.folder(other), folder))
    worker.end("completed")
    world.tick()
    assert (world.status(job), stored_steps(world, job)) == ("succeeded", [])
    assert "another" not in world.client.get(f"/v1/jobs/{job}/logs?rank=0&tail=9").text


def test_a_long_spool_delays_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick reads a part of it and continues in the next one."""
    monkeypatch.setattr(spool_ingest, "JOB_SECONDS", 0.0)
    monkeypatch.setattr(spool_ingest, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(spool_ingest, "MIN_SECONDS", 0.0)
    job, worker = start_with_spool(world, *range(1, 6))
    other = world.start(world.submit())
    assert worker.finish("completed").status_code == 200
    other.end("completed")
    world.tick(4)
    assert world.status(job) == "running"
    assert 0 < len(stored_steps(world, job)) < 5
    assert world.client.get("/v1/jobs?status=succeeded").json()["data"], "the other job has ended"
    world.tick(8)
    assert (world.status(job), stored_steps(world, job)) == ("succeeded", [1, 2, 3, 4, 5])


def test_reports_over_the_spool_limit_are_an_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_ingest, "MAX_SPOOL_BYTES", 400)
    job, worker = start_with_spool(world, *range(1, 9))
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert 0 < len(stored_steps(world, job)) < 8
    (rejected,) = rejections(world, job)
    assert "limit" in rejected["message"]


def test_only_exit_records_of_the_attempts_own_executions_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit(restart={"max_retries": 1})
    world.start(job)
    opened: list[str] = []
    read = UntrustedFiles.read

    def counted(files: UntrustedFiles, path: Path, offset: int, size: int) -> bytes:
        opened.append(path.name)
        return read(files, path, offset, size)

    monkeypatch.setattr(UntrustedFiles, "read", counted)
    folder = world.folder(job)
    for number in range(500):
        folder.finish(900_000 - number).write_text("no record")
    folder.finish(2).write_text("no record")
    complete = FinishRecord(execution=1, reason="completed", step=20, time=world.clock())
    folder.finish(1).write_text(complete.model_dump_json())
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "succeeded"
    assert [name for name in opened if name.startswith("finish-")] == ["finish-000002.json", "finish-000001.json"]


def test_error_logs_of_a_filled_folder_are_bounded(world: World) -> None:
    job = world.submit()
    world.tick()
    folder = world.folder(job).submitit
    for number in range(3000):
        (folder / f"{number}_0_log.err").touch()
    with at_most(0.5):
        files = UntrustedFiles(world.settings.runs)
        assert run_dir.read_unclaimed(files, world.folder(job), ended=True) == run_dir.UnclaimedAttempt()


def test_logs_of_ranks_that_do_not_exist_are_not_stored(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    refused = worker.log("2", 0, b"text")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "rank")
    assert worker.log("1", 0, b"text").status_code == 200
    (world.folder(job).logs / "rank-777.log").write_text("text")
    (world.folder(job).logs / "rank-0.log").write_text("text")
    worker.end("completed", step=20)
    world.tick(2)
    assert world.status(job) == "succeeded"
    assert [world.client.get(f"/v1/jobs/{job}/logs?rank={rank}").status_code for rank in (0, 1, 777)] == [200, 200, 404]
