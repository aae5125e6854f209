"""Whole jobs on a real Slurm, through the service's REST API."""

import subprocess

import pytest

from tests.slurm.conftest import on_both_databases
from tests.slurm.specs import long_run, on_two_nodes, parity
from tests.support.live import attempt_of, losses, processes_of, run_of, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def scheduler_id(client: Client, job_id: str) -> str:
    """Wait until Slurm has the current attempt, and return its scheduler id."""

    def known() -> str | None:
        attempt = client.job(job_id).attempt
        return attempt.scheduler_id if attempt else None

    return str(wait_until(known, 60, f"{job_id} to have a Slurm id"))


@on_both_databases
def test_two_nodes_train_and_report(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        job = client.submit(parity())
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        assert sorted(losses(client, job.id)) == list(range(1, 31))
        assert [c.step for c in client.checkpoints(job.id)][-1] == 30
        run = run_of(service.runs_dir, job.id)
        (attempt,) = client.attempts(job.id)
        assert attempt.nodes == ["node1", "node2"]
        for node in attempt.nodes:
            assert [one.id for one in client.jobs(where=f"node = {node} and id = {job.id}")] == [job.id]
        filed = attempt_of(run, 1).root / "submitit" / f"{attempt.scheduler_id}_submission.sh"
        assert client.script(job.id).script == filed.read_text(), "what is shown is what was submitted"
        assert {p.name for p in attempt_of(run, 1).logs.glob("rank-*.log")} == {f"rank-{r}.log" for r in range(4)}
        for rank in range(4):
            assert f"rank {rank}, attempt 1" in client.logs(job.id, rank=str(rank), tail=200).text


@on_both_databases
def test_cancelled_job_leaves_no_process(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        job = client.submit(long_run())
        wait_for_step(client, job.id, 3)
        attempt = client.job(job.id).attempt
        assert attempt is not None
        client.cancel(job.id)
        done = wait_for_status(client, job.id, "cancelled", "failed", seconds=60)
        assert (done.status, done.status_reason) == ("cancelled", "user_cancelled")
        wait_until(lambda: not processes_of(attempt.id), 20, "its processes to be gone")
        assert not slurm.jobs(states="PENDING,RUNNING,COMPLETING")


@pytest.mark.smoke
@pytest.mark.fault_scenario(19)
def test_external_scancel_is_reported(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        running = client.submit(long_run())
        wait_for_step(client, running.id, 3)
        # Submitted only now, because the order of concurrent submissions is undefined.
        waiting = client.submit(parity(name="too big for now", resources__cpus_per_gpu=4))
        pending = wait_for_status(client, waiting.id, "pending")
        number = scheduler_id(client, waiting.id)
        reason = "when enough nodes are free (Resources)"
        wait_until(lambda: reason in client.job(waiting.id).status_message, 60, f"Slurm's reason, after {pending}")
        slurm.run("scancel", number)
        # Without accounting, nobody knows who cancelled it: it continues once.
        wait_until(lambda: len(list(client.attempts(waiting.id))) == 2, 60, "a next attempt")
        slurm.run("scancel", scheduler_id(client, waiting.id))
        slurm.run("scancel", scheduler_id(client, running.id))
        wait_until(lambda: len(list(client.attempts(running.id))) == 2, 60, "a next attempt")
        wait_for_status(client, running.id, "running")
        slurm.run("scancel", scheduler_id(client, running.id))
        for job in (running, waiting):
            done = wait_for_status(client, job.id, "cancelled", "failed", "succeeded", seconds=60)
            assert (done.status, done.status_reason) == ("cancelled", "cancelled_outside")


@pytest.mark.fault_scenario(15)
@on_both_databases
def test_preempted_job_continues_in_a_new_attempt(service: ServiceProcess, slurm: SlurmLab, pace: Pace) -> None:
    with service.client() as client:
        pace.set(SLOWLY)
        job = client.submit(on_two_nodes(steps=150, checkpoint={"every_steps": 1000}), code=pace.code)
        wait_for_step(client, job.id, 7)
        slurm.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 2")
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 60, "a next attempt")
        pace.set(0)
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert first.exit_reason == "preempted"
        assert (second.resumed_from_step or 0) >= 7, "it saved when it was told to go"
        assert sorted(losses(client, job.id)) == list(range(1, 151))


@pytest.mark.fault_scenario(10)
def test_controller_outage_changes_no_status(service: ServiceProcess, slurm: SlurmLab, pace: Pace) -> None:
    with service.client() as client:
        pace.set(SLOWLY)
        job = client.submit(on_two_nodes(steps=1000), code=pace.code)
        wait_for_step(client, job.id, 3)
        slurm.stop_controller()
        try:
            with pytest.raises(subprocess.CalledProcessError):
                subprocess.run(["squeue"], env=slurm.environment, check=True, capture_output=True, timeout=60)
            step = client.job(job.id).progress
            assert step is not None
            wait_for_step(client, job.id, step.step + 20)
            assert client.job(job.id).status == "running"
        finally:
            slurm.start_controller()
        pace.set(0)
        done = wait_for_status(client, job.id, "succeeded", "failed", "lost", "cancelled")
        assert done.status == "succeeded", done.status_message
        assert len(list(client.attempts(job.id))) == 1
