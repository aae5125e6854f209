"""The controller loses its state on a cluster without accounting, and with it a job that has not started."""

from pathlib import Path

import pytest

from tests.support.live import wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.fault_scenario(38, 60)
def test_forgotten_pending_job_has_a_next_attempt(service: ServiceProcess, slurm: SlurmLab, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('done')")
    spec = {"version": 1, "task": "script", "argv": ["train.py"], "gpus": 1, "restart": {"max_retries": 0}}
    slurm.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the nodes to be taken")
    with service.client() as client:
        job = client.submit(spec, code=code)
        wait_for_status(client, job.id, "pending")
        slurm.stop_controller()
        slurm.start_controller(clean=True)
        lost = wait_for_status(client, job.id, "lost", seconds=120)
        assert lost.condition is not None
        assert (lost.condition.code, "has not started" in lost.status_message) == ("unlisted", True)
        done = wait_for_status(client, job.id, "succeeded", "failed", "cancelled", seconds=900)
        assert done.status == "succeeded", done.status_message
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert (first.exit_reason, first.started_at, second.exit_reason) == ("preempted", None, "completed")
