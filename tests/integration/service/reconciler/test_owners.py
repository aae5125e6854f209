"""Attempts of jobs that run as their owners: preparation, refusals, and what others may have planted."""

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.as_owner import operations
from service.as_owner.accounts import Accounts
from service.as_owner.calls import NoAnswerError, OwnerCalls
from service.core.untrusted_files import UntrustedFiles
from service.db.models import UnixUser
from service.main import make_loop
from service.reconciler import orphans as orphan_module
from service.reconciler.adoption import Adoption
from service.reconciler.repository import find_job
from service.scheduler.base import QueueEntry
from tests.support.world import SPEC, World
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.reports import Claim

pytestmark = pytest.mark.databases("sqlite")

ADA, EVE = 4711, 4712


class InProcessOwners(OwnerCalls):
    """Does in this process what a helper would do, and records as whom."""

    def __init__(self) -> None:
        self.known = {ADA: "ada", EVE: "eve"}
        super().__init__(Accounts(1000, self._by_uid, self._by_name))
        self.calls: list[tuple[int, str]] = []
        self.lost = False

    def _by_uid(self, uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((self.known[uid], "x", uid, 100, "", f"/home/{self.known[uid]}", "/bin/sh"))

    def _by_name(self, name: str) -> pwd.struct_passwd:
        return self._by_uid(next(uid for uid, each in self.known.items() if each == name))

    def call(
        self, uid: int, operation: str, request: Mapping[str, Any], seconds: float, *, held: int | None = None
    ) -> dict[str, Any]:
        self.accounts.get(uid)
        self.calls.append((uid, operation))
        if self.lost:
            raise NoAnswerError("the helper of ada gave no answer")
        return operations.OPERATIONS[operation](request)


@pytest.fixture
def owners() -> InProcessOwners:
    return InProcessOwners()


@pytest.fixture
def shared(
    database_url: str, tmp_path: Path, owners: InProcessOwners, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Yield a service whose jobs run as their owners."""
    world = World(database_url, tmp_path / "state", run_as="owner", runs_dir=tmp_path / "runs")
    with world.database.write() as session:
        for uid, name in owners.known.items():
            session.add(UnixUser(name=name, uid=uid, created_at=world.clock()))
    world.app_state.owners = owners
    world.reconciler = world.new_reconciler("one")
    # This process writes what the accounts' own processes would.
    is_owned = UntrustedFiles.is_owned
    monkeypatch.setattr(
        UntrustedFiles, "is_owned", lambda files, status: files.owner in owners.known or is_owned(files, status)
    )
    yield world
    world.database.dispose()


def submit(world: World, name: str = "ada") -> str:
    answer = world.new_user("user", name).post("/v1/jobs", json=SPEC)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_an_attempt_is_prepared_and_submitted_as_its_owner(shared: World, owners: InProcessOwners) -> None:
    job = submit(shared)
    shared.tick()
    (plan,) = shared.scheduler.submitted
    assert (plan.uid, owners.calls) == (ADA, [(ADA, "write")])
    assert {name: plan.environment[name] for name in ("HOME", "USER", "LOGNAME")} == {
        "HOME": "/home/ada",
        "USER": "ada",
        "LOGNAME": "ada",
    }
    folder = shared.folder(job)
    assert folder.token.stat().st_mode & 0o777 == 0o600
    assert '"umask": 23' in folder.launch.read_text(), "octal 027"
    worker = shared.start(job)
    worker.end("completed")
    shared.tick()
    assert shared.status(job) == "succeeded"


def test_files_without_an_answer_are_written_again_before_the_submission(
    shared: World, owners: InProcessOwners
) -> None:
    job = submit(shared)
    owners.lost = True
    shared.tick()
    assert (shared.status(job), shared.scheduler.submitted) == ("submitting", [])
    assert "the helper of ada gave no answer" in shared.job(job)["status_message"]
    owners.lost = False
    shared.tick()
    assert len(shared.scheduler.submitted) == 1


def test_the_jobs_of_an_unknown_account_wait_and_are_rejected_in_the_end(
    shared: World, owners: InProcessOwners
) -> None:
    job, other = submit(shared), submit(shared, "eve")
    del owners.known[ADA]
    shared.tick()
    assert (shared.status(job), shared.status(other)) == ("queued", "pending")
    assert "no Unix account with uid 4711" in shared.job(job)["status_message"]
    shared.clock.advance(598)
    shared.tick()
    answer = shared.job(job)
    assert (answer["status"], answer["status_reason"]) == ("queued", None)
    shared.tick()
    answer = shared.job(job)
    assert (answer["status"], answer["status_reason"]) == ("failed", "rejected")
    assert "trainyard tokens link" in answer["status_message"]


def test_an_account_that_is_known_again_in_time_runs_its_jobs(shared: World, owners: InProcessOwners) -> None:
    job, name = submit(shared), owners.known.pop(ADA)
    shared.tick()
    shared.clock.advance(300)
    owners.known[ADA] = name
    shared.tick()
    assert shared.status(job) == "pending"


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "between two attempts"])
def test_a_job_of_the_other_setting_is_rejected_with_the_remedy(
    shared: World, owners: InProcessOwners, begun: bool
) -> None:
    job = submit(shared)
    if begun:
        shared.start(job).end("preempted")
    shared.app_state.owners = None
    shared.reconciler = shared.new_reconciler("service")
    shared.clock.advance(60)
    shared.tick(3)
    answer = shared.job(job)
    assert (answer["status"], answer["status_reason"]) == ("failed", "rejected")
    assert "TRAINYARD_RUN_AS=service" in answer["status_message"]
    assert len(shared.scheduler.submitted) == int(begun)


def test_a_job_of_the_service_is_rejected_where_owners_run_theirs(world: World, owners: InProcessOwners) -> None:
    job = world.submit()
    world.app_state.owners = owners
    world.reconciler = world.new_reconciler("owner")
    world.clock.advance(60)
    world.tick()
    answer = world.job(job)
    assert (answer["status"], answer["status_reason"]) == ("failed", "rejected")
    assert "TRAINYARD_RUN_AS=owner" in answer["status_message"]
    assert world.scheduler.submitted == []


def test_an_owner_delays_no_submission_of_another(shared: World) -> None:
    submitter = make_loop(shared.app_state, shared.scheduler).reconciler._submitter
    assert submitter.pool.threads >= 2, "an owner can hold up half of the threads, and no tick"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another account")
def test_a_fork_that_cannot_be_removed_does_not_end_the_maintenance(shared: World, owners: InProcessOwners) -> None:
    planted = shared.settings.runs / "job_planted"
    (planted / "origin").mkdir(parents=True)
    os.chown(planted, ADA, -1)
    os.utime(planted, (0, 0))
    owners.lost = True
    shared.run_maintenance()
    assert (ADA, "remove") in owners.calls


class TestOrphans:
    """Anybody can make a folder or a job under any name."""

    @pytest.fixture(autouse=True)
    def folders_of_ada(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have all run folders belong to `ada`."""
        monkeypatch.setattr(orphan_module.OrphanScan, "_account", lambda _, run: run.root.lstat() and ADA)

    def forget(self, world: World) -> tuple[str, str, str]:
        """Forget a running job as a restore does; return its id, its tag and its scheduler id."""
        job = submit(world)
        world.start(job)
        folder, attempt = world.folder(job), world.job(job)["attempt"]
        folder.claim.write_text(Claim(nonce="nonce-0001", host="node1", pid=7).model_dump_json())
        RunLayout(world.settings.runs / job).creator.write_text('{"created_by": "admin"}')
        with world.database.write() as session:
            session.delete(find_job(session, job))
        world.reconciler = world.new_reconciler("restored")
        world.clock.advance(60)
        return job, f"ty-main-{attempt['id']}", f"id-ty-main-{attempt['id']}"

    def test_a_run_folder_is_adopted_for_the_account_that_owns_it(
        self, shared: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, tag, scheduler_id = self.forget(shared)
        entries = [QueueEntry(tag, "1", "running", EVE), QueueEntry(tag, scheduler_id, "running", ADA)]
        monkeypatch.setattr(shared.scheduler, "own_entries", lambda: [*entries, QueueEntry(tag, "9", "running", None)])
        shared.tick()
        (orphan,) = [each for each in shared.client.get("/v1/orphans").json()["data"] if each["folder"]]
        assert (orphan["id"], orphan["scheduler_id"]) == (job, scheduler_id)
        assert shared.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"}).status_code == 202
        shared.tick(3)
        adopted = shared.job(job)
        assert (adopted["status"], adopted["created_by"]) == ("running", "ada"), "not whom the folder names"
        with shared.database.read() as session:
            row = find_job(session, job)
            assert row is not None
            assert row.unix_uid == ADA

    def test_the_planted_entry_is_cancelled_as_whoever_made_it(
        self, shared: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        planted = "ty-main-00000000000000aa"
        monkeypatch.setattr(shared.scheduler, "own_entries", lambda: [QueueEntry(planted, "1", "running", EVE)])
        cancelled: list[Any] = []
        monkeypatch.setattr(shared.scheduler, "cancel", cancelled.append)
        shared.tick()
        assert shared.client.post(f"/v1/orphans/{planted}/resolve", json={"action": "cancel"}).status_code == 202
        shared.tick()
        assert [(job.tag, job.uid) for job in cancelled] == [(planted, EVE)]


def test_a_restore_marker_of_a_user_is_ignored(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.settings.restore_marker.touch()
    adoption = Adoption(shared.reconciler.lease, shared.clock, shared.settings, "slurm")
    assert adoption.is_due()
    os.chown(shared.settings.restore_marker, ADA, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "getuid", lambda: ADA
    )
    assert not adoption.is_due()
