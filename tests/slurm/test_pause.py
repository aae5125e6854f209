"""Pause and resume on a real Slurm: nodes are released, and the losses equal those of an undisturbed run."""

import pytest

from tests.slurm.specs import on_two_nodes, parity
from tests.support.live import losses, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def test_paused_run_releases_its_nodes_and_resumes(service: ServiceProcess, slurm: SlurmLab, pace: Pace) -> None:
    with service.client() as client:
        pace.set(SLOWLY)
        # A pause reaches a worker on Slurm with its next heartbeat, after ten seconds at most.
        spec = on_two_nodes(steps=400, checkpoint={"every_steps": 1000})
        job = client.submit(spec, code=pace.code)
        wait_for_step(client, job.id, 7)
        waiting = client.submit(parity(resources__cpus_per_gpu=4))
        wait_for_status(client, waiting.id, "pending")
        client.pause(waiting.id)
        wait_for_status(client, waiting.id, "paused", seconds=60)
        client.pause(job.id)
        paused = wait_for_status(client, job.id, "paused", "succeeded", "failed")
        assert paused.status == "paused", paused.status_message
        assert (paused.last_checkpoint_step or 0) >= 7
        wait_until(lambda: not slurm.jobs(states="PENDING,RUNNING,COMPLETING"), 30, "its nodes to be free")
        client.cancel(waiting.id)
        pace.set(0)
        client.resume(job.id)
        done = wait_for_status(client, job.id, "succeeded", "failed", seconds=240)
        assert done.status == "succeeded", done.status_message
        assert [a.exit_reason for a in client.attempts(job.id)] == ["paused", "completed"]
        undisturbed = client.submit(spec, code=pace.code)
        wait_for_status(client, undisturbed.id, "succeeded", "failed", seconds=240)
        assert losses(client, job.id) == losses(client, undisturbed.id)
