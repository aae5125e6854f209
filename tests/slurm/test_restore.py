"""A restore while Slurm runs jobs: attempts since the backup are adopted, and jobs since the backup are orphans."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import losses, run_of, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

STEPS = 200


def run_command(service: ServiceProcess, *arguments: str) -> None:
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(command, env=service._environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.fault_scenario(36)
def test_restore_adopts_what_slurm_runs_and_lists_the_rest(slurm: SlurmLab, pace: Pace, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    spec = paced_run(resources={"partition": "gpu"}, steps=STEPS)
    with slurm_service(tmp_path) as service:
        pace.set(SLOWLY)
        with service.client() as client:
            job = client.submit(spec, code=pace.code)
            wait_for_step(client, job.id, 10)
            (first,) = client.attempts(job.id)
            run_command(service, "backup", str(backup))
            slurm.run("scancel", "--signal=TERM", "--full", str(first.scheduler_id))
            wait_until(lambda: len(list(client.attempts(job.id))) == 2, 120, "a next attempt")
            second = max(client.attempts(job.id), key=lambda attempt: attempt.number)
            wait_for_step(client, job.id, 25)
            unknown = client.submit(spec | {"name": "unknown"}, code=pace.code)
            wait_for_step(client, unknown.id, 5)
        service.stop()
        run_command(service, "restore", str(backup))
        service.start()
        with service.client() as client:
            wait_until(lambda: len(list(client.attempts(job.id))) == 2, 30, "the adoption")
            adopted = max(client.attempts(job.id), key=lambda attempt: attempt.number)
            assert adopted.id == second.id
            assert wait_for_status(client, job.id, "running").status_message
            (orphan,) = wait_until(client.orphans, 30, "the orphan to be listed")
            assert (orphan.id, orphan.state) == (unknown.id, "running")
            client.resolve_orphan(unknown.id, "cancel")
            running = {"RUNNING", "COMPLETING"}
            wait_until(
                lambda: (
                    not [1 for number, _, state in slurm.jobs() if number == orphan.scheduler_id and state in running]
                ),
                90,
                "the orphan to be cancelled",
            )
            pace.set(0)
            done = wait_for_status(client, job.id, "succeeded", "failed", seconds=200)
            assert done.status == "succeeded", done.status_message
            assert sorted(losses(client, job.id)) == list(range(1, STEPS + 1))
            assert len(list(run_of(service.runs_dir, job.id).attempts.iterdir())) == 2
