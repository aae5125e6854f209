"""What Slurm ends by itself: a time limit, a node that dies."""

import pytest

from tests.slurm.specs import long_run
from tests.support.live import losses, wait_for_status, wait_for_step
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


def test_a_dead_node_costs_no_retry_and_the_job_goes_on(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        job = client.submit(long_run(steps=150, restart__max_retries=0))
        wait_for_step(client, job.id, 45)
        slurm.stop_node("node2")
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 90, "a next attempt")
        slurm.start_node("node2")
        done = wait_for_status(client, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        second = max(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert (second.resumed_from_step or 0) >= 40
        assert sorted(losses(client, job.id)) == list(range(1, 151))


def test_a_time_limit_is_continued(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        limits = {"resources__partition": "minute", "resources__time_limit_minutes": 1}
        job = client.submit(long_run(steps=100_000, **limits))
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 120, "a next attempt")
        first = min(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert first.exit_reason == "time_limit"

        def resumed() -> int | None:
            attempt = client.job(job.id).attempt
            return attempt.resumed_from_step if attempt and attempt.number == 2 else None

        assert int(wait_until(resumed, 60, "the second attempt to report") or 0) > 20
        client.cancel(job.id)
        wait_for_status(client, job.id, "cancelled", seconds=60)
