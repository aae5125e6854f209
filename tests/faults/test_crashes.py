"""The service exits at each failpoint and is started again: the job runs once and gets the right final status.

Every case runs a script in a forked process that dies at its place, then the same script again until the job is over.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.plugins.webhooks.sender import SendResult
from tests.faults.drive import ServiceStage
from tests.integration.service.plugins.sweeps.test_searches import FAILPOINTS as SEARCH_FAILPOINTS
from tests.support.forks import in_a_fork
from tests.support.seeds import LINES, LINES_DIGEST
from trainyard.contract.wire.jobs import TERMINAL

KILLED = 137
Script = Callable[[ServiceStage], None]


def plain(stage: ServiceStage, *, checkpoint: bool = False) -> None:
    """The job is submitted, runs and completes."""
    job = stage.submit()
    for _ in range(40):
        stage.tick(30)
        for sim in stage.in_state("running"):
            if checkpoint:
                stage.worker(sim).checkpoint(20)
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def answer_lost(stage: ServiceStage) -> None:
    """Slurm accepts the job, but the response is lost; the job is found by a lookup before it starts."""
    stage.slurm.mode = "lose-answer"
    stage.submit()
    stage.tick()
    stage.tick()
    plain(stage)


def request_lost(stage: ServiceStage) -> None:
    """The request is lost; the lookup finds nothing, and the job is submitted again."""
    stage.slurm.mode = "drop" if stage.world.clock.now == stage.start_time else "accept"
    job = stage.submit()
    while stage.world.status(job) not in TERMINAL:
        stage.tick(60)
        stage.slurm.mode = "accept"
        for sim in stage.in_state("running"):
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            stage.start(sim)


def submitted_twice(stage: ServiceStage) -> None:
    """Slurm has two entries of one attempt: one is adopted, the other is cancelled."""
    stage.slurm.mode = "lose-answer"
    job = stage.submit()
    stage.tick()
    if len(stage.slurm.jobs) == 1:
        stage.slurm.add_duplicate(stage.slurm.jobs[0])
    plain(stage)
    assert stage.world.status(job) == "succeeded"


def cancelled(stage: ServiceStage) -> None:
    """The running job is cancelled."""
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


def cancelled_while_unconfirmed(stage: ServiceStage) -> None:
    """The job is cancelled while its submission is unconfirmed; Slurm does not have it."""
    stage.slurm.mode = "drop"
    job = stage.submit()
    for _ in range(40):
        stage.tick(60)
        stage.world.client.post(f"/v1/jobs/{job}/cancel")
        if stage.world.status(job) in TERMINAL:
            # The queue is searched for what it may have received.
            stage.tick(60)
            return


def preempted(stage: ServiceStage) -> None:
    """The job is preempted once; the next attempt completes it."""
    job = stage.submit()
    for _ in range(40):
        stage.tick(30)
        for sim in stage.in_state("running"):
            first = sim.folder.name.startswith("1-")
            stage.finish(sim, "preempted" if first else "completed", step=10 if first else 20)
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def paused(stage: ServiceStage) -> None:
    """The running job is paused and resumed; the next attempt completes it."""
    job = stage.submit()
    for _ in range(60):
        stage.tick(5)
        for sim in stage.in_state("running"):
            if sim.folder.name.startswith("1-"):
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


def paused_in_the_queue(stage: ServiceStage) -> None:
    """The pending job is paused, which removes it from the queue, and is resumed later."""
    job = stage.submit()
    for _ in range(60):
        stage.tick(5)
        for sim in stage.in_state("running"):
            stage.finish(sim, "completed", step=20)
        for sim in stage.in_state("pending"):
            if sim.folder.name.startswith("1-"):
                stage.world.client.post(f"/v1/jobs/{job}/pause")
            else:
                stage.start(sim)
        if stage.world.status(job) == "paused":
            stage.world.client.post(f"/v1/jobs/{job}/resume")
        if stage.world.status(job) in TERMINAL:
            return


def restored(stage: ServiceStage) -> None:
    """The database counts as restored while the job runs."""
    job, once = stage.submit(), stage.world.settings.state / "restored-once"
    for _ in range(60):
        stage.tick(5)
        for sim in stage.in_state("running"):
            if once.exists():
                stage.finish(sim, "completed", step=20)
            else:
                once.touch()
                stage.world.settings.restore_marker.touch()
        for sim in stage.in_state("pending"):
            stage.start(sim)
        if stage.world.status(job) in TERMINAL:
            return


def deleted(stage: ServiceStage) -> None:
    """After the end of the job, a checkpoint is deleted, and then the job."""
    if not stage.world.client.get("/v1/jobs").json()["data"] and stage.slurm.jobs:
        stage.tick()
        stage.world.run_maintenance()
        return
    plain(stage, checkpoint=True)
    job = stage.world.client.get("/v1/jobs").json()["data"][0]["id"]
    stage.world.client.delete(f"/v1/jobs/{job}?only=checkpoints")
    stage.tick()
    stage.world.run_maintenance()
    stage.world.client.delete(f"/v1/jobs/{job}")
    stage.world.run_maintenance()


class DeliveryRecorder:
    """A webhook receiver that outlives the service and records the ids of the messages."""

    def __init__(self, stage: ServiceStage) -> None:
        self._path = stage.world.settings.state / "received"

    async def send(self, _url: str, headers: dict[str, str], _body: str, _owner: str) -> SendResult:
        with self._path.open("a") as file:
            file.write(headers["webhook-id"] + "\n")
        return SendResult(status=200)

    def ids(self) -> list[str]:
        return self._path.read_text().split()


def with_webhook(stage: ServiceStage) -> None:
    """A webhook is notified of each status of the job."""
    world = stage.world
    world.app_state.settings = world.settings.model_copy(update={"webhook_allowed_hosts": ("127.0.0.1:9",)})
    if not world.client.get("/v1/webhooks").json()["data"]:
        world.client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/hook"})
    plain(stage)
    while world.deliver_webhooks(DeliveryRecorder(stage)):  # type: ignore[arg-type]
        pass


def disk_full(stage: ServiceStage) -> None:
    """At first the run directory cannot be created."""
    job = stage.submit()
    blocked = stage.world.settings.runs / job
    if stage.world.clock.now == stage.start_time:
        blocked.write_text("a file where the folder should be")
        stage.tick()
    if blocked.is_file():
        blocked.unlink()
    plain(stage)


def shut_down(stage: ServiceStage) -> None:
    """The service shuts down normally during the job."""
    stage.submit()
    stage.tick()
    stage.world.reconciler.close()
    plain(stage)


def uploaded(stage: ServiceStage) -> None:
    """A data file is uploaded in parts; after a crash, the client completes the same upload again."""
    client, known = stage.world.client, stage.world.settings.state / "upload"
    if not known.exists():
        body = {"name": "text.jsonl", "size_bytes": len(LINES), "digest": LINES_DIGEST}
        upload_id = client.post("/v1/uploads", json=body).json()["id"]
        known.write_text(upload_id)
        assert client.put(f"/v1/uploads/{upload_id}?offset=0", content=LINES).status_code == 200
    assert client.post(f"/v1/uploads/{known.read_text()}/complete").status_code in (200, 201)
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
    ("resolve.after-look", request_lost),
    ("resolve.before-count", request_lost),
    ("resolve.after-count", request_lost),
    ("prepare.before-commit", request_lost),
    ("resolve.after-double", submitted_twice),
    ("tick.after-cancel", cancelled),
    ("apply.before-commit", cancelled),
    ("search-withdrawn.before-commit", cancelled_while_unconfirmed),
    ("give-up.before-commit", cancelled_while_unconfirmed),
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
    ("adoption.before-commit", restored),
    ("upload.before-commit", uploaded),
    ("upload.after-commit", uploaded),
]
CANCELLABLE = [
    pytest.param(
        label,
        script,
        id=f"{script.__name__}-{label}",
        marks=[pytest.mark.slow] if label in (earlier for earlier, _ in FAILPOINTS[:index]) else [],
    )
    for index, (label, script) in enumerate(FAILPOINTS)
    if script not in (deleted, uploaded)
]
"""The cases in which there is a job to cancel. Those of a failpoint after its first are slow."""


@pytest.mark.fault_scenario(1, 8, 32)
@pytest.mark.parametrize(
    ("label", "script"), FAILPOINTS, ids=[f"{script.__name__}-{label}" for label, script in FAILPOINTS]
)
def test_service_killed_at_a_failpoint(label: str, script: Script, tmp_path: Path, migrated_sqlite: Path) -> None:
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    shutil.copy(migrated_sqlite, tmp_path / "test.sqlite")
    assert in_a_fork(lambda: _run_script(tmp_path, url, script, label)) == KILLED, "the place was passed"
    stage = ServiceStage(tmp_path, url)
    try:
        script(stage)
        _check_final_state(stage, script)
    finally:
        stage.close()


@pytest.mark.parametrize(("label", "script"), CANCELLABLE)
def test_job_cancelled_at_a_failpoint(label: str, script: Script, tmp_path: Path, migrated_sqlite: Path) -> None:
    """After the restart the job is cancelled, and no entry of it remains in the queue."""
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    shutil.copy(migrated_sqlite, tmp_path / "test.sqlite")
    assert in_a_fork(lambda: _run_script(tmp_path, url, script, label)) == KILLED, "the place was passed"
    stage = ServiceStage(tmp_path, url)
    try:
        if (blocked := stage.world.settings.runs).is_dir():
            for file in [path for path in blocked.iterdir() if path.is_file()]:
                file.unlink()
        (job,) = stage.world.client.get("/v1/jobs").json()["data"]
        over = job["status"] in TERMINAL
        refused = over and job["status"] != "cancelled"
        finished = any(sim.end_state == "completed" for sim in stage.slurm.jobs) or label == "finish.after-commit"
        assert stage.world.client.post(f"/v1/jobs/{job['id']}/cancel").status_code == (409 if refused else 202)
        _run_to_end(stage, job["id"])
        status = stage.world.status(job["id"])
        assert status == "cancelled" or (status == "succeeded" and (over or finished)), status
        assert not stage.in_state("pending")
        assert not stage.in_state("running")
    finally:
        stage.close()


def _run_to_end(stage: ServiceStage, job: str) -> None:
    """Let Slurm start pending jobs and end cancelled ones until the job has ended."""
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
    """Each failpoint of the service must have a case."""
    root = Path(__file__).parents[2] / "service"
    named = {label for file in root.rglob("*.py") for label in _FAILPOINT.findall(file.read_text())}
    assert named == {label for label, _ in FAILPOINTS} | set(SEARCH_FAILPOINTS)
    assert len(named) >= 25


def _run_script(folder: Path, url: str, script: Script, label: str) -> None:
    stage = ServiceStage(folder, url)

    def crash(passed: str) -> None:
        if passed == label:
            os._exit(KILLED)

    stage.world.app_state.failpoint = crash
    script(stage)


def _check_final_state(stage: ServiceStage, script: Script) -> None:
    """Check the final state, which is the same for all failpoints."""
    if script is deleted:
        assert stage.world.client.get("/v1/jobs").json()["data"] == []
        assert [path.name for path in stage.world.settings.runs.iterdir()] == [".trash"]
        assert not any((stage.world.settings.runs / ".trash").iterdir())
        return
    if script is with_webhook:
        (webhook,) = stage.world.client.get("/v1/webhooks").json()["data"]
        written = stage.world.client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["data"]
        ids = DeliveryRecorder(stage).ids()
        assert set(ids) == {one["id"] for one in written}, "a delivery is missing"
        assert len(ids) == len(written) + 1, "the interrupted delivery was not repeated with its id"
        assert {one["state"] for one in written} == {"delivered"}
    if script is uploaded:
        (file,) = stage.world.client.get("/v1/files").json()["data"]
        assert stage.world.client.get(f"/v1/files/{file['id']}/content").content == LINES
    (job,) = stage.world.client.get("/v1/jobs").json()["data"]
    assert job["status"] == ("cancelled" if script in (cancelled, cancelled_while_unconfirmed) else "succeeded"), job
    assert not stage.in_state("running")
    assert not stage.in_state("pending")
    for attempt in {sim.tag for sim in stage.slurm.jobs}:
        runs = [sim for sim in stage.slurm.jobs if sim.tag == attempt and sim.granted]
        assert len(runs) <= 1, "an attempt ran twice"
    granted = [sim for sim in stage.slurm.jobs if sim.granted]
    assert len(granted) == {cancelled_while_unconfirmed: 0, preempted: 2, paused: 2}.get(script, 1)
    never_ran = 1 if script in (submitted_twice, paused_in_the_queue) else 0
    assert len(stage.slurm.jobs) == len(granted) + never_ran, "an attempt was submitted twice"
    events = stage.world.client.get(f"/v1/jobs/{job['id']}/events?order=asc&limit=200").json()["data"]
    assert [event["type"] for event in events].count("created") == 1
    terminal = [event for event in events if event["type"] == "status" and event["data"]["status"] in TERMINAL]
    assert len(terminal) == 1, "the job did not end exactly once"
