"""After a restore, the service adopts from the run directories what the database does not know."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.scheduler.base import Observation
from tests.support.world import FakeWorker, World
from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import Claim, FinishRecord, MetricsBatch
from trainyard.contract.wire.spool import format_record

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def restored(world: World, tmp_path: Path) -> Callable[[], Any]:
    """Return a context manager: the database is what it was at the start of the block, and the marker is set."""

    @contextmanager
    def restore() -> Iterator[None]:
        backup, database = tmp_path / "backup", Path(str(world.database.url.database))
        world.database.dispose()
        shutil.copy(database, backup)
        yield
        world.database.dispose()
        for suffix in ("-wal", "-shm"):
            Path(f"{database}{suffix}").unlink(missing_ok=True)
        shutil.copy(backup, database)
        world.settings.restore_marker.touch()
        world.reconciler = world.new_reconciler("restored")
        world.clock.advance(60)

    return restore


def spool(folder: AttemptLayout, execution: int, steps: range, *, resumed: int = 0) -> None:
    """Write points as a worker does, all of them acknowledged."""
    records = []
    for number, step in enumerate(steps):
        point = {"key": "loss", "step": step, "value": step, "time": "2026-01-01T00:00:00Z"}
        batch = MetricsBatch.model_validate({"execution": execution, "resumed_from_step": resumed, "points": [point]})
        records.append(format_record(number, "metrics", batch))
    folder.spool_file(execution).write_bytes(b"".join(records))
    folder.spool_acknowledged(execution).write_text(str(folder.spool_file(execution).stat().st_size))


def claim(worker: FakeWorker, folder: AttemptLayout, nonce: str) -> None:
    """Claim as a launcher does: from the service, then in the folder."""
    worker.execution = worker.claim(nonce).json()["execution"]
    write_atomic(folder.claim, Claim(nonce=nonce, host="node1", pid=7).model_dump_json())


def steps(world: World, job: str) -> list[int]:
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics").json()["series"]
    return list(series["steps"])


def end(world: World, worker: FakeWorker, folder: AttemptLayout, reason: str, state: Any = "ended") -> None:
    record = {"execution": worker.execution, "reason": reason, "time": world.clock().isoformat()}
    write_atomic(folder.finish(worker.execution), FinishRecord.model_validate(record).model_dump_json())
    world.scheduler.set_states(state)


def continue_as_second_attempt(world: World, job: str) -> FakeWorker:
    """Preempt the first attempt and let a worker claim the second."""
    first = world.folder(job)
    spool(first, 1, range(1, 11))
    end(world, world.worker(job), first, "preempted")
    world.tick(2)
    world.scheduler.states = {tag: Observation("running") for tag in world.scheduler.states}
    worker = world.worker(job)
    claim(worker, world.folder(job, 2), "nonce-0002")
    return worker


@pytest.mark.fault_scenario(36)
def test_running_unknown_attempt_is_adopted_and_not_repeated(world: World, restored: Any) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        worker = continue_as_second_attempt(world, job)
        folder = world.folder(job, 2)
        spool(folder, worker.execution, range(8, 15), resumed=7)
    submitted = len(world.scheduler.submitted)
    assert worker.metrics([("loss", 15, 15.0)], resumed=7).status_code == 401, (
        "its token is unknown until the next tick"
    )
    world.tick()
    assert world.status(job) == "running"
    assert world.job(job)["attempt"]["id"] == worker.attempt_id
    assert worker.metrics([("loss", 15, 15.0)], resumed=7).status_code == 200
    assert worker.post("heartbeat", {"execution": worker.execution}).json()["stop"] is None
    assert steps(world, job) == [*range(1, 8), 15], "points of the first attempt are read at once"
    world.tick(3)
    assert len(world.scheduler.submitted) == submitted
    end(world, worker, folder, "completed")
    world.tick()
    assert world.status(job) == "succeeded"
    assert steps(world, job) == list(range(1, 16))
    assert not world.settings.restore_marker.exists()


def test_job_that_was_queued_at_the_backup_is_adopted(world: World, restored: Any) -> None:
    job = world.submit()
    with restored():
        worker = world.start(job)
        write_atomic(world.folder(job).claim, Claim(nonce="nonce-0001", host="node1", pid=7).model_dump_json())
    world.tick(3)
    assert (world.status(job), len(world.scheduler.submitted)) == ("running", 1)
    assert worker.claim().status_code == 200, "its repeated claim is granted again"


def test_unclaimed_unknown_attempt_is_looked_up_by_its_tag(world: World, restored: Any) -> None:
    job = world.submit()
    with restored():
        world.tick()
        attempt = world.job(job)["attempt"]["id"]
    world.tick(3)
    assert (world.status(job), world.job(job)["attempt"]["id"]) == ("pending", attempt)
    assert len(world.scheduler.submitted) == 1


def test_failed_job_that_was_retried_since_is_adopted(world: World, restored: Any) -> None:
    job = world.submit()
    world.start(job).end("error", failure={"type": "E", "message": "m", "final": True})
    world.tick()
    assert world.status(job) == "failed"
    with restored():
        world.client.post(f"/v1/jobs/{job}/retry", json={"from": "checkpoint"})
        world.tick()
        world.scheduler.set_states("running")
        claim(world.worker(job), world.folder(job, 2), "nonce-0002")
    world.tick(2)
    assert (world.status(job), world.job(job)["attempt"]["number"]) == ("running", 2)


def test_attempts_that_ended_since_bring_their_points_and_logs(world: World, restored: Any) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        second = continue_as_second_attempt(world, job)
        folder = world.folder(job, 2)
        spool(folder, second.execution, range(8, 13), resumed=7)
        (folder.logs / "rank-0.log").write_text("of the second\n")
        end(world, second, folder, "preempted")
        world.tick()
        world.clock.advance(60)
        world.tick()
        world.scheduler.set_states("running")
        third = world.worker(job)
        claim(third, world.folder(job, 3), "nonce-0003")
        spool(world.folder(job, 3), third.execution, range(11, 17), resumed=10)
        end(world, third, world.folder(job, 3), "completed")
    world.tick(2)
    assert (world.status(job), steps(world, job)) == ("succeeded", list(range(1, 17)))
    rows = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert [(row["number"], row["exit_reason"]) for row in rows] == [
        *((1, "preempted"), (2, "preempted"), (3, "completed"))
    ]
    assert world.client.get(f"/v1/jobs/{job}/logs?attempt=2").text == "of the second\n"


def test_claim_after_the_backup_of_a_known_attempt_is_restored(world: World, restored: Any) -> None:
    job = world.submit()
    world.tick()
    with restored():
        world.scheduler.set_states("running")
        claim(world.worker(job), world.folder(job), "nonce-0001")
    world.tick()
    assert world.status(job) == "running"


@pytest.mark.parametrize("interrupted", [True, False])
def test_interrupted_adoption_is_completed_by_the_next_start(world: World, restored: Any, interrupted: bool) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        continue_as_second_attempt(world, job)
    if interrupted:
        world.fail_at("adoption.before-commit")
        with pytest.raises(SystemExit):
            world.tick()
        world.reconciler = world.new_reconciler("restored")
    else:
        world.tick()
        world.settings.restore_marker.touch()
    world.tick()
    rows = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert [row["number"] for row in rows] == [1, 2]
    assert world.status(job) == "running"


def test_marker_that_cannot_be_removed_does_not_stop_the_service(
    world: World, restored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    with restored():
        pass

    def refuse(_path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        world.tick()
    world.tick()
    assert (world.status(job), world.settings.restore_marker.exists()) == ("pending", True)


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": "job_other"},
        {"execution": 1},
        {"attempt": 1},
        {"tag": "ty-main-0123456789abcdef"},
        {"max_restarts": 10**6},
    ],
    ids=str,
)
def test_inconsistent_attempt_is_not_adopted(world: World, restored: Any, change: dict[str, Any]) -> None:
    import json

    job = world.submit()
    world.start(job)
    with restored():
        continue_as_second_attempt(world, job)
        folder = world.folder(job, 2)
        folder.launch.write_text(json.dumps(json.loads(folder.launch.read_text()) | change))
    world.tick()
    assert world.job(job)["attempt"]["number"] == 1


def test_link_in_place_of_an_attempts_folder_is_not_followed(world: World, restored: Any, tmp_path: Path) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        continue_as_second_attempt(world, job)
        folder = world.folder(job, 2).root
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    world.tick()
    assert world.job(job)["attempt"]["number"] == 1


def test_unknown_attempt_of_a_former_release_is_adopted(world: World, restored: Any) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        worker = continue_as_second_attempt(world, job)
        folder = world.folder(job, 2).root
        folder.rename(folder.parent / "2")
    spool(AttemptLayout(folder.parent / "2"), worker.execution, range(8, 15), resumed=7)
    end(world, worker, AttemptLayout(folder.parent / "2"), "completed")
    world.tick(2)
    assert (world.status(job), steps(world, job)[-1]) == ("succeeded", 14)


def test_next_attempt_after_a_restore_has_a_folder_of_its_own(world: World, restored: Any) -> None:
    job = world.submit()
    world.start(job)
    with restored():
        continue_as_second_attempt(world, job)
        unknown = world.folder(job, 2).root
    world.settings.restore_marker.unlink()
    world.scheduler.set_states("ended")
    world.tick(2)
    assert world.job(job)["attempt"]["number"] == 2
    assert world.folder(job, 2).root != unknown


def test_attempt_of_a_former_release_keeps_its_folder(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    folder = world.folder(job).root
    folder.rename(folder.parent / "1")
    with world.database.write() as session:
        from service.db.models import Attempt

        session.get_one(Attempt, worker.attempt_id).folder = None
    spool(AttemptLayout(folder.parent / "1"), 1, range(1, 4))
    AttemptLayout(folder.parent / "1").spool_acknowledged(1).unlink()
    end(world, worker, AttemptLayout(folder.parent / "1"), "completed")
    world.tick()
    assert (world.status(job), steps(world, job)) == ("succeeded", [1, 2, 3])
