"""Cancellation in each state of a job and at each point of its submission: no entry and no process remains."""

import time
from pathlib import Path

import psutil
import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.specs import long_run
from tests.support.live import wait_for_status, wait_for_step
from tests.support.slurm_lab import SlurmLab
from tests.support.slurm_wrappers import install
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobCondition
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm

ALIVE = "PENDING,RUNNING,COMPLETING,SUSPENDED"


def cancel_and_check(client: Client, job_id: str, service: ServiceProcess, slurm: SlurmLab, others: int = 0) -> None:
    """Cancel twice; after the end check squeue and the processes."""
    client.cancel(job_id)
    client.cancel(job_id)
    require_no_trace(client, job_id, service, slurm, others)


def require_no_trace(client: Client, job_id: str, service: ServiceProcess, slurm: SlurmLab, others: int) -> None:
    done = wait_for_status(client, job_id, "cancelled", "failed", "succeeded", seconds=90)
    assert (done.status, done.status_reason) == ("cancelled", "user_cancelled")
    wait_until(lambda: not processes_below(service.runs_dir), 30, "its processes to be gone")
    wait_until(lambda: len(slurm.jobs(states=ALIVE)) == others, 30, "it to leave the queue")


def processes_below(runs: Path) -> list[psutil.Process]:
    """Return the processes that run in the runs directory, or were started with a path in it."""
    live = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        texts = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        if str(runs) in " ".join(texts) and process.info["status"] != psutil.STATUS_ZOMBIE:
            live.append(process)
    return live


def test_cancel_while_slurm_does_not_answer(service: ServiceProcess, slurm: SlurmLab) -> None:
    slurm.stop_controller()
    try:
        with service.client() as client:
            job = client.submit(long_run())
            client.cancel(job.id)
            assert wait_for_status(client, job.id, "cancelled", seconds=90).attempt is None
    finally:
        slurm.start_controller()
    wait_until(lambda: not slurm.jobs(states=ALIVE), 30, "the controller to answer, with nothing in the queue")


@pytest.mark.smoke
def test_cancel_while_pending(service: ServiceProcess, slurm: SlurmLab) -> None:
    slurm.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the nodes to be taken")
    with service.client() as client:
        job = client.submit(long_run())
        wait_for_status(client, job.id, "pending")
        cancel_and_check(client, job.id, service, slurm, others=1)


def test_a_slow_controller_cancels_many_jobs(slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", "scancel", 'sleep 1\nexec $REAL "$@"', monkeypatch)
    slurm.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the nodes to be taken")
    with slurm_service(tmp_path) as service, service.client() as client:
        jobs = [client.submit(long_run()).id for _ in range(40)]
        wait_until(lambda: len(slurm.jobs(states="PENDING")) == len(jobs), 120, "the jobs to wait")
        started = time.monotonic()
        for job in jobs:
            client.cancel(job)
        wait_until(lambda: all(client.job(job).status == "cancelled" for job in jobs), 60, "the cancellations")
        assert time.monotonic() - started < 20, "one after another they would take 40 s"
        assert len(slurm.jobs(states=ALIVE)) == 1


def test_cancel_between_start_and_claim(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        job = client.submit(long_run())
        wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "Slurm to start it")
        cancel_and_check(client, job.id, service, slurm)


POINTS = {
    "before sbatch asks": 'touch {began}; sleep 3; exec $REAL "$@"',
    "after the controller has it": '$REAL "$@" > {answer}; touch {began}; sleep 3; cat {answer}',
    "an error although it was accepted": (
        '$REAL "$@" > /dev/null; touch {began}; sleep 3; echo "Socket timed out on send/recv operation" >&2; exit 1'
    ),
    "the submitter dies": '$REAL "$@" > /dev/null; touch {began}; sleep 3; kill -9 $PPID',
}


@pytest.mark.parametrize("point", POINTS)
def test_cancel_during_submission(point: str, slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, answer = tmp_path / "began", tmp_path / "answer"
    install(tmp_path / "bin", "sbatch", POINTS[point].format(began=began, answer=answer), monkeypatch)
    with slurm_service(tmp_path) as service, service.client() as client:
        job = client.submit(long_run())
        wait_until(began.exists, 30, "sbatch to be called")
        assert client.job(job.id).status == "submitting"
        cancel_and_check(client, job.id, service, slurm)


def test_cancel_of_an_ambiguous_submission(slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden"
    hidden.touch()
    refusal = "Socket timed out on send/recv operation"
    install(tmp_path / "bin", "sbatch", f'$REAL "$@" > /dev/null; echo "{refusal}" >&2; exit 1', monkeypatch)
    install(tmp_path / "bin", "squeue", f'[ -e {hidden} ] && exit 0; exec $REAL "$@"', monkeypatch)
    with slurm_service(tmp_path) as service:
        with service.client() as client:
            job = client.submit(long_run())
            message = "without a clear answer"
            wait_until(lambda: message in client.job(job.id).status_message, 30, "the submission to be in doubt")
            wait_until(lambda: len(slurm.jobs(states=ALIVE)) == 1, 30, "Slurm to have it all the same")
            client.cancel(job.id)
            wait_until(lambda: client.job(job.id).status == "cancelled", 15, "the cancellation")
        service.kill()
        hidden.unlink()
        service.start()
        with service.client() as client:
            require_no_trace(client, job.id, service, slurm, others=0)


def test_cancel_while_slurm_does_not_list_the_job(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sends heartbeats, so the job is not lost."""
    hidden = tmp_path / "hidden"
    install(tmp_path / "bin", "squeue", f'[ -e {hidden} ] && exit 0; exec $REAL "$@"', monkeypatch)
    with slurm_service(tmp_path) as service, service.client() as client:
        job = client.submit(long_run())
        wait_for_step(client, job.id, 3)
        hidden.touch()
        wait_until(
            lambda: client.job(job.id).condition == JobCondition(code="not_in_queue"),
            30,
            "Slurm's ignorance to be noticed",
        )
        assert client.job(job.id).status == "running"
        cancel_and_check(client, job.id, service, slurm)
