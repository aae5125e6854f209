"""The service is ended with `os._exit` at each of these places and started again: one job, one run, a true end.

Every case runs a script in a forked process that dies at its place, then the same script again until the job is over.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.webhooks.sender import SendResult
from tests.faults.drive import Stage
from tests.support.forks import in_a_fork
from trainyard.contract.wire.jobs import TERMINAL

KILLED = 137
Script = Callable[[Stage], None]


def plain(stage: Stage) -> None:
    """Accepted, run, completed."""
    job = stage.submit()
    for _ in range(40):
        stage.tick(30)
        for sim in stage.in_state("running"):
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def answer_lost(stage: Stage) -> None:
    """Slurm has it, nobody heard so, and it is looked for before it starts."""
    stage.slurm.mode = "lose-answer"
    stage.submit()
    stage.tick()
    stage.tick()
    plain(stage)


def never_arrived(stage: Stage) -> None:
    """Slurm does not have it: it is looked for and handed over again."""
    stage.slurm.mode = "drop" if stage.world.clock.now == stage.began else "accept"
    job = stage.submit()
    while stage.world.status(job) not in TERMINAL:
        stage.tick(60)
        stage.slurm.mode = "accept"
        for sim in stage.in_state("running"):
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            stage.start(sim)


def doubled(stage: Stage) -> None:
    """Two entries of one attempt: one is adopted, the other cancelled."""
    stage.slurm.mode = "lose-answer"
    job = stage.submit()
    stage.tick()
    if len(stage.slurm.jobs) == 1:
        stage.slurm.double(stage.slurm.jobs[0])
    plain(stage)
    assert stage.world.status(job) == "succeeded"


def cancelled(stage: Stage) -> None:
    """While it runs."""
    job = stage.submit()
    for _ in range(40):
        stage.tick(30)
        for sim in stage.in_state("running"):
            stage.world.client.post(f"/v1/jobs/{job}/cancel")
            if sim.cancel_requested:
                stage.slurm.end(sim, "cancelled")
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def cancelled_in_doubt(stage: Stage) -> None:
    """While nobody knows whether Slurm has it, and it does not."""
    stage.slurm.mode = "drop"
    job = stage.submit()
    for _ in range(40):
        stage.tick(60)
        stage.world.client.post(f"/v1/jobs/{job}/cancel")
        if stage.world.status(job) in TERMINAL:
            return


def preempted(stage: Stage) -> None:
    """Once; the next attempt completes it."""
    job = stage.submit()
    for _ in range(40):
        stage.tick(30)
        for sim in stage.in_state("running"):
            first = sim.folder.name == "1"
            stage.finish(sim, "preempted" if first else "completed", step=10 if first else 20)
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def paused(stage: Stage) -> None:
    """While it runs; resumed, the next attempt completes it."""
    job = stage.submit()
    for _ in range(60):
        stage.tick(5)
        for sim in stage.in_state("running"):
            if sim.folder.name == "1":
                stage.world.client.post(f"/v1/jobs/{job}/pause")
                stage.finish(sim, "preempted", step=10)
            else:
                stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) == "paused":
            stage.world.client.post(f"/v1/jobs/{job}/resume")
        if stage.world.status(job) in TERMINAL:
            return


def paused_in_the_queue(stage: Stage) -> None:
    """Before it starts: its place is given back, and it gets another one later."""
    job = stage.submit()
    for _ in range(60):
        stage.tick(5)
        for sim in stage.in_state("running"):
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            if sim.folder.name == "1":
                stage.world.client.post(f"/v1/jobs/{job}/pause")
            else:
                stage.start(sim)
        if stage.world.status(job) == "paused":
            stage.world.client.post(f"/v1/jobs/{job}/resume")
        if stage.world.status(job) in TERMINAL:
            return


def deleted(stage: Stage) -> None:
    """After it has ended: first a checkpoint, then all of it."""
    if not stage.world.client.get("/v1/jobs").json()["data"] and stage.slurm.jobs:
        stage.tick()
        stage.world.run_maintenance()
        return
    plain(stage)
    job = stage.world.client.get("/v1/jobs").json()["data"][0]["id"]
    if stage.world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"] == []:
        stage.worker(stage.slurm.jobs[0]).checkpoint(20)
    stage.world.client.delete(f"/v1/jobs/{job}?only=checkpoints")
    stage.tick()
    stage.world.run_maintenance()
    stage.world.client.delete(f"/v1/jobs/{job}")
    stage.world.run_maintenance()


class Book:
    """A receiver that outlives the service: the ids of the messages that it got."""

    def __init__(self, stage: Stage) -> None:
        self._path = stage.world.settings.state / "received"

    async def send(self, _url: str, headers: dict[str, str], _body: str) -> SendResult:
        with self._path.open("a") as file:
            file.write(headers["webhook-id"] + "\n")
        return SendResult(status=200)

    def ids(self) -> list[str]:
        return self._path.read_text().split()


def with_webhook(stage: Stage) -> None:
    """Someone hears of each of its statuses."""
    world = stage.world
    world.services.settings = world.settings.model_copy(update={"webhook_allowed_hosts": ("127.0.0.1:9",)})
    if not world.client.get("/v1/webhooks").json()["data"]:
        world.client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/hook"})
    plain(stage)
    while world.deliver_webhooks(Book(stage)):  # type: ignore[arg-type]
        pass


def disk_full(stage: Stage) -> None:
    """The run directory cannot be written at first."""
    job = stage.submit()
    blocked = stage.world.settings.runs / job
    if stage.world.clock.now == stage.began:
        blocked.write_text("a file where the folder should be")
        stage.tick()
    if blocked.is_file():
        blocked.unlink()
    plain(stage)


def shut_down(stage: Stage) -> None:
    """In good order, in the middle."""
    stage.submit()
    stage.tick()
    stage.world.reconciler.close()
    plain(stage)


FAILPOINTS: list[tuple[str, Script]] = [
    ("accept.after-commit", plain),
    ("tick.after-lease", plain),
    ("tick.after-load", plain),
    ("tick.after-observation", plain),
    ("submit.before-intent", plain),
    ("submit.after-intent", plain),
    ("prepare.before-announcement", plain),
    ("prepare.before-commit", plain),
    ("prepare.after-announcement", plain),
    ("prepare.after-files", plain),
    ("submit.after-answer", plain),
    ("collect.before-record", plain),
    ("record.before-commit", plain),
    ("collect.after-record", plain),
    ("claim.after-commit", plain),
    ("finish.after-commit", plain),
    ("tick.before-spool-ingest", plain),
    ("tick.after-spool-ingest", plain),
    ("tick.after-decision", plain),
    ("apply.before-commit", plain),
    ("tick.after-apply", plain),
    ("resolve.after-look", answer_lost),
    ("resolve.after-adoption", answer_lost),
    ("record.before-commit", answer_lost),
    ("resolve.after-look", never_arrived),
    ("resolve.before-count", never_arrived),
    ("resolve.after-count", never_arrived),
    ("prepare.before-commit", never_arrived),
    ("resolve.after-double", doubled),
    ("tick.after-cancel", cancelled),
    ("apply.before-commit", cancelled),
    ("resolve.after-count", cancelled_in_doubt),
    ("give-up.before-commit", cancelled_in_doubt),
    ("submit.after-intent", preempted),
    ("apply.before-commit", preempted),
    ("tick.after-apply", preempted),
    ("not-asked.before-commit", disk_full),
    ("close.before-release", shut_down),
    ("steer.after-commit", paused),
    ("tick.after-decision", paused),
    ("apply.before-commit", paused),
    ("tick.after-apply", paused),
    ("submit.after-intent", paused),
    ("steer.after-commit", paused_in_the_queue),
    ("tick.after-cancel", paused_in_the_queue),
    ("apply.before-commit", paused_in_the_queue),
    ("delete.after-commit", deleted),
    ("delete.before-files", deleted),
    ("delete.after-files", deleted),
    ("remove.after-files", deleted),
    ("post.after-sending", with_webhook),
]
CANCELLABLE = [(label, script) for label, script in FAILPOINTS if script is not deleted]
"""Where there is still a job to cancel."""


@pytest.mark.scenario(1, 8, 32)
@pytest.mark.parametrize(
    ("label", "script"), FAILPOINTS, ids=[f"{script.__name__}-{label}" for label, script in FAILPOINTS]
)
def test_service_killed_at_a_failpoint(label: str, script: Script, tmp_path: Path, migrated_sqlite: Path) -> None:
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    shutil.copy(migrated_sqlite, tmp_path / "test.sqlite")
    assert in_a_fork(lambda: _play(tmp_path, url, script, label)) == KILLED, "the place was passed"
    stage = Stage(tmp_path, url)
    try:
        script(stage)
        _check(stage, script)
    finally:
        stage.close()


@pytest.mark.parametrize(
    ("label", "script"), CANCELLABLE, ids=[f"{script.__name__}-{label}" for label, script in CANCELLABLE]
)
def test_job_cancelled_at_a_failpoint(label: str, script: Script, tmp_path: Path, migrated_sqlite: Path) -> None:
    """Killed there, and the next that anybody hears of the job is that it is not wanted: nothing of it is left."""
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    shutil.copy(migrated_sqlite, tmp_path / "test.sqlite")
    assert in_a_fork(lambda: _play(tmp_path, url, script, label)) == KILLED, "the place was passed"
    stage = Stage(tmp_path, url)
    try:
        if (blocked := stage.world.settings.runs).is_dir():
            for file in [path for path in blocked.iterdir() if path.is_file()]:
                file.unlink()
        (job,) = stage.world.client.get("/v1/jobs").json()["data"]
        over = job["status"] in TERMINAL
        finished = any(sim.ended_as == "completed" for sim in stage.slurm.jobs) or label == "finish.after-commit"
        assert stage.world.client.post(f"/v1/jobs/{job['id']}/cancel").status_code == (409 if over else 202)
        _let_it_end(stage, job["id"])
        status = stage.world.status(job["id"])
        assert status == "cancelled" or (status == "succeeded" and (over or finished)), status
        assert not stage.in_state("pending")
        assert not stage.in_state("running")
    finally:
        stage.close()


def _let_it_end(stage: Stage, job: str) -> None:
    """Slurm starts what waits and ends what it was asked to; nobody else ends anything."""
    for _ in range(40):
        stage.tick(61)
        for sim in stage.in_state("running"):
            if sim.cancel_requested:
                stage.slurm.end(sim, "cancelled")
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL and not stage.in_state("running"):
            return


_FAILPOINT = re.compile(r"failpoint\(\"([a-z.-]+)\"\)")


def test_every_failpoint_is_covered() -> None:
    """A new place in the service without a case here is a gap in the campaign."""
    root = Path(__file__).parents[2] / "service"
    named = {label for file in root.rglob("*.py") for label in _FAILPOINT.findall(file.read_text())}
    assert named == {label for label, _ in FAILPOINTS}
    assert len(named) >= 25


def _play(folder: Path, url: str, script: Script, label: str) -> None:
    stage = Stage(folder, url)

    def crash(passed: str) -> None:
        if passed == label:
            os._exit(KILLED)

    stage.world.services.failpoint = crash
    script(stage)


def _check(stage: Stage, script: Script) -> None:
    """What has to be true of the end, whatever happened on the way."""
    if script is deleted:
        assert stage.world.client.get("/v1/jobs").json()["data"] == []
        assert [path.name for path in stage.world.settings.runs.iterdir()] == [".trash"]
        assert not any((stage.world.settings.runs / ".trash").iterdir())
        return
    if script is with_webhook:
        (webhook,) = stage.world.client.get("/v1/webhooks").json()["data"]
        written = stage.world.client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["data"]
        ids = Book(stage).ids()
        assert set(ids) == {one["id"] for one in written}, "everything was told"
        assert len(ids) == len(written) + 1, "and what was told as the service died, once more by the same id"
        assert {one["state"] for one in written} == {"delivered"}
    (job,) = stage.world.client.get("/v1/jobs").json()["data"]
    assert job["status"] == ("cancelled" if script in (cancelled, cancelled_in_doubt) else "succeeded"), job
    assert not stage.in_state("running")
    assert not stage.in_state("pending")
    for attempt in {sim.tag for sim in stage.slurm.jobs}:
        runs = [sim for sim in stage.slurm.jobs if sim.tag == attempt and sim.granted]
        assert len(runs) <= 1, "an attempt ran twice"
    granted = [sim for sim in stage.slurm.jobs if sim.granted]
    assert len(granted) == {cancelled_in_doubt: 0, preempted: 2, paused: 2}.get(script, 1)
    never_ran = 1 if script in (doubled, paused_in_the_queue) else 0
    assert len(stage.slurm.jobs) == len(granted) + never_ran, "nothing was submitted twice"
    events = stage.world.client.get(f"/v1/jobs/{job['id']}/events?order=asc&limit=200").json()["data"]
    assert [event["type"] for event in events].count("created") == 1
    terminal = [event for event in events if event["type"] == "status" and event["data"]["status"] in TERMINAL]
    assert len(terminal) == 1, "it ended once"
