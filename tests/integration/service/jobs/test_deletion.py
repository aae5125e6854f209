"""Deletion of jobs and checkpoints: hidden at once, removed from disk soon, also after a crash."""

import os
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.jobs.repository import JobRepository
from service.maintenance.repository import MaintenanceRepository
from service.metrics.downsampling.downsampler import downsample_job
from service.metrics.ingest.decode import PointBatch
from service.metrics.ingest.repository import InsertResult, PointsRepository
from service.metrics.ingest.restart_repository import RestartRepository
from service.metrics.ingest.writer import GroupWriter, WriterCache
from tests.support.wait import wait_until
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def save(world: World, worker: Any, job: str, step: int) -> Path:
    folder = world.app_state.run_layout(job).checkpoint(step).root
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * 1000)
    (folder / "manifest.json").write_text("{}")
    assert worker.checkpoint(step).status_code == 200
    return folder


@pytest.fixture
def succeeded(world: World) -> str:
    """A job that has succeeded, with two checkpoints, points and a log."""
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0) for step in range(1, 21)])
    worker.log("0", 0, b"hello\n")
    for step in (10, 20):
        save(world, worker, job, step)
    assert downsample_job(world.database, number(world, job)) == 20
    worker.end("completed", step=20)
    world.tick()
    return job


def number(world: World, job: str) -> int:
    with world.database.read() as session:
        return JobRepository(session, world.clock()).get(job).pk


@pytest.mark.databases("sqlite", "postgres")
def test_deleted_job_is_hidden_at_once_and_its_run_directory_removed(world: World, succeeded: str) -> None:
    other = world.submit()
    assert world.client.delete(f"/v1/jobs/{succeeded}").status_code == 204
    assert world.client.get(f"/v1/jobs/{succeeded}").status_code == 404
    assert world.client.delete(f"/v1/jobs/{succeeded}").status_code == 404
    assert [job["id"] for job in world.client.get("/v1/jobs").json()["data"]] == [other]
    world.run_maintenance()
    assert not world.app_state.run_layout(succeeded).root.exists()
    with world.database.read() as session:
        for table in ("jobs", "attempts", "points", "downsampled_points", "log_chunks", "checkpoints", "events"):
            rows = session.connection().exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            assert rows == {"jobs": 1, "events": 2}.get(table, 0), table


@pytest.mark.databases("sqlite", "postgres")
def test_points_stored_during_the_deletion_are_deleted_too(world: World) -> None:
    """No foreign key removes them."""
    job = world.submit()
    attempt, pk = world.start(job).attempt_id, number(world, job)

    def delete() -> None:
        with world.database.write() as session:
            MaintenanceRepository(session).delete_job(pk)

    def waits() -> bool:
        if world.database.dialect == "sqlite":
            return True  # before the one writer's turn
        with world.database.read() as session:
            return bool(session.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    deleting = threading.Thread(target=delete)

    class Slow(PointsRepository):
        def store(self, *what: Any) -> list[InsertResult]:
            deleting.start()
            wait_until(waits)
            return super().store(*what)

    with world.database.write_raw() as transaction:
        repositories = Slow(transaction), RestartRepository(transaction)
        group = GroupWriter(*repositories, WriterCache(), datetime(2026, 1, 1, tzinfo=UTC))
        (outcome,) = group.write([(attempt, PointBatch(1, 0, [("a", 1, 1.0, 0, 0, None)]))])
    assert isinstance(outcome, InsertResult)
    deleting.join(10)
    with world.database.read() as session:
        assert session.scalar(sa.text("SELECT count(*) FROM points")) == 0


@pytest.mark.parametrize("label", ["delete.before-files", "delete.after-files", "remove.after-files"])
def test_interrupted_maintenance_is_finished_by_the_next_run(world: World, succeeded: str, label: str) -> None:
    only = "?only=checkpoints" if label.startswith("remove") else ""
    world.client.delete(f"/v1/jobs/{succeeded}{only}")
    world.fail_at(label)
    with pytest.raises(SystemExit):
        world.run_maintenance()
    world.run_maintenance()
    world.run_maintenance()
    run = world.app_state.run_layout(succeeded)
    assert run.root.exists() is bool(only)
    assert run.complete_checkpoints() == []
    assert list((world.settings.runs / ".trash").iterdir()) == []


def test_trash_of_an_earlier_service_is_removed(world: World) -> None:
    left = world.settings.runs / ".trash" / "job_x"
    left.mkdir(parents=True)
    world.submit()
    world.tick()
    world.run_maintenance()
    assert not left.exists()


def test_only_links_of_unaccepted_forks_are_removed(world: World) -> None:
    runs = world.settings.runs
    orphan, restored, fresh = (runs / f"job_{letter * 26}" for letter in "abc")
    for folder in (orphan, restored, fresh):
        (folder / "origin").mkdir(parents=True)
    (restored / "checkpoints").mkdir()
    for folder in (orphan, restored):
        os.utime(folder, (0, 0))
    world.submit()
    world.tick()
    world.run_maintenance()
    assert (orphan.exists(), restored.exists(), fresh.exists()) == (False, True, True)


def test_active_job_cannot_be_deleted(world: World) -> None:
    job = world.submit()
    for query in ("", "?only=checkpoints"):
        refused = world.client.delete(f"/v1/jobs/{job}{query}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_not_finished")
    assert world.client.delete(f"/v1/jobs/{job}?only=logs").status_code == 422


def test_only_the_owner_can_delete(world: World, succeeded: str) -> None:
    (checkpoint, _) = world.client.get(f"/v1/jobs/{succeeded}/checkpoints").json()["data"]
    other_user = world.new_user("user", "somebody")
    assert other_user.delete(f"/v1/jobs/{succeeded}").status_code == 403
    assert other_user.delete(f"/v1/jobs/{succeeded}/checkpoints/{checkpoint['id']}").status_code == 403


def test_delete_only_the_checkpoints(world: World, succeeded: str) -> None:
    assert world.client.delete(f"/v1/jobs/{succeeded}?only=checkpoints").status_code == 204
    assert world.client.get(f"/v1/jobs/{succeeded}/checkpoints").json()["data"] == []
    assert world.job(succeeded)["last_checkpoint_step"] is None
    world.run_maintenance()
    assert world.app_state.run_layout(succeeded).complete_checkpoints() == []
    assert world.folder(succeeded).root.exists()


@pytest.mark.databases("sqlite", "postgres")
def test_running_job_allows_deleting_any_but_its_latest_checkpoint(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    old, new = save(world, worker, job, 5), save(world, worker, job, 10)
    first, second = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    refused = world.client.delete(f"/v1/jobs/{job}/checkpoints/{second['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoint_in_use")
    assert world.client.delete(f"/v1/jobs/{job}/checkpoints/{first['id']}").status_code == 204
    assert world.client.get(f"/v1/jobs/{job}/checkpoints/{first['id']}").status_code == 404
    world.run_maintenance()
    assert (old.exists(), new.exists()) == (False, True)
    assert world.job(job)["last_checkpoint_step"] == 10


@pytest.mark.databases("sqlite", "postgres")
def test_checkpoint_rewritten_before_its_removal_survives(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    folder = save(world, worker, job, 5)
    save(world, worker, job, 10)
    (first, _) = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    world.client.delete(f"/v1/jobs/{job}/checkpoints/{first['id']}")
    worker.checkpoint(5)
    world.run_maintenance()
    assert folder.exists()


def test_checkpoint_without_a_folder_is_marked_deleted(world: World, succeeded: str) -> None:
    run = world.app_state.run_layout(succeeded)
    run.checkpoint(10).root.rename(run.checkpoints / "step-0000000010.damaged")
    world.run_maintenance()
    assert [one["step"] for one in world.client.get(f"/v1/jobs/{succeeded}/checkpoints").json()["data"]] == [20]


@pytest.mark.databases("sqlite", "postgres")
def test_disk_use_is_measured_per_job_and_per_user(world: World, succeeded: str) -> None:
    assert world.job(succeeded)["disk_bytes"] is None
    world.run_maintenance()
    held = world.job(succeeded)["disk_bytes"]
    assert held > 2000
    (fork,) = [world.submit(resume_from=f"{succeeded}:10")]
    world.run_maintenance()
    assert world.job(fork)["disk_bytes"] < 1000, "what it shares with its source is counted there"
    usage = world.client.get("/v1/usage").json()
    assert usage["users"] == [{"name": "admin", "jobs": 2, "disk_bytes": held + world.job(fork)["disk_bytes"]}]
    assert usage["free_bytes"] > 0


@pytest.mark.databases("sqlite", "postgres")
def test_exceeded_disk_quota_rejects_a_job_with_the_numbers(world: World, succeeded: str) -> None:
    world.settings.quota_gb_per_user = 1e-6
    key = {"Idempotency-Key": "before"}
    spec = world.job(succeeded)["spec"]
    assert world.client.post("/v1/jobs", json=spec, headers=key).status_code == 201, "not measured yet"
    world.run_maintenance()
    refused = world.client.post("/v1/jobs", json=spec)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
    assert "the quota is 1.05 KiB per user" in refused.json()["error"]["message"]
    assert world.client.post("/v1/jobs", json=spec, headers=key).status_code == 201, "a repeated request is answered"
    client = world.new_user("user", "somebody")
    assert client.post("/v1/jobs", json=spec).status_code == 201


@pytest.mark.databases("sqlite", "postgres")
def test_missing_run_directory_of_a_running_job_is_an_event(world: World) -> None:
    moved, intact = world.submit(), world.submit()
    world.start(moved)
    world.start(intact)
    (world.settings.runs / moved).rename(world.settings.runs / "elsewhere")
    (world.settings.runs / moved / "checkpoints").mkdir(parents=True)  # as the next checkpoint does
    for _ in range(2):
        world.run_maintenance()
        world.clock.advance(60)
    events = {job: world.client.get(f"/v1/jobs/{job}/events").json()["data"] for job in (moved, intact)}
    levels = {job: [e["level"] for e in events[job] if e["type"] == "run_directory_missing"] for job in events}
    assert levels == {moved: ["error"], intact: []}


def test_low_disk_space_adds_one_event_an_hour(world: World) -> None:
    world.settings.low_disk_gb = 1e9
    job = world.submit()
    world.start(job)
    for seconds in (0, 60, 3600):
        world.clock.advance(seconds)
        world.reconciler.run_once()
        world.run_maintenance()
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert [event["level"] for event in events if event["type"] == "low_disk"] == ["warning", "warning"]
    ready = world.client.get("/readyz")
    assert ready.status_code == 200
    assert "free for runs" in ready.json()["notes"][0]


def test_deep_folders_and_links_of_a_job_hold_no_deletion(world: World, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    jobs = [world.submit() for _ in range(2)]
    for job in jobs:
        world.start(job).end("completed")
        world.tick()
    root = world.app_state.run_layout(jobs[0]).artifacts
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    home = os.getcwd()
    try:
        os.chdir(root)
        for _ in range(1500):
            Path("file").touch()
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(home)
    for job in jobs:
        assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
    try:
        world.run_maintenance()
        assert not any(world.app_state.run_layout(job).root.exists() for job in jobs)
        assert list((world.settings.runs / ".trash").iterdir()) == []
    finally:
        # Pytest cannot remove such a folder either.
        subprocess.run(["rm", "-rf", str(world.settings.runs)], check=True)
    assert (tmp_path / "elsewhere" / "file").exists()
