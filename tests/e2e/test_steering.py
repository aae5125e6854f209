"""Pause, resume and retry of real runs: the curve is that of a run nobody touched, to the last digit."""

import pytest

from tests.e2e.test_jobs_for_real import long_run
from tests.support.live import losses, processes_of, run_of, wait_for_status, wait_for_step
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e


def test_a_paused_and_resumed_run_and_a_retried_one_keep_the_losses(client: Client, service: ServiceProcess) -> None:
    spec = long_run(steps=160)
    undisturbed = client.submit(spec)
    wait_for_status(client, undisturbed.id, "succeeded")
    expected = losses(client, undisturbed.id)

    job = client.submit(spec)
    wait_for_step(client, job.id, 30)
    client.pause(job.id)
    paused = wait_for_status(client, job.id, "paused")
    assert paused.attempt is not None
    assert not processes_of(paused.attempt.id), "its place is given back"
    assert paused.last_checkpoint_step not in (None, 20, 40, 60), "saved where it was, not where it would have been"
    client.resume(job.id)
    wait_for_step(client, job.id, (paused.last_checkpoint_step or 0) + 10)
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    client.retry(job.id)
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert [a.exit_reason for a in client.attempts(job.id)] == ["paused", "user_cancelled", "completed"]
    assert losses(client, job.id) == expected


def test_a_retry_from_scratch_begins_again(client: Client, service: ServiceProcess) -> None:
    job = client.submit(long_run(steps=160))
    wait_for_step(client, job.id, 50)
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    client.retry(job.id, start="scratch")
    assert list(client.checkpoints(job.id)) == []
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.attempt is not None
    assert done.attempt.resumed_from_step == 0
    assert sorted(losses(client, job.id)) == list(range(1, 161))
    kept = [checkpoint.step for checkpoint in run_of(service.runs_dir, job.id).complete_checkpoints()]
    assert kept == [checkpoint.step for checkpoint in client.checkpoints(job.id)]
