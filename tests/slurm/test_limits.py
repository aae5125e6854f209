"""A job at its time limit."""

import time

import pytest

from tests.slurm.specs import long_run
from tests.support.live import wait_for_status
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.fault_scenario(16)
def test_job_continues_after_the_time_limit(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        limits = {"resources__partition": "minute", "resources__time_limit_minutes": 1}
        job = client.submit(long_run(**limits))
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 120, "a next attempt")
        first = min(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert first.exit_reason == "time_limit"

        def resumed() -> int | None:
            attempt = client.job(job.id).attempt
            return attempt.resumed_from_step if attempt and attempt.number == 2 else None

        assert int(wait_until(resumed, 60, "the second attempt to report") or 0) > 20
        client.cancel(job.id)
        wait_for_status(client, job.id, "cancelled", seconds=60)


@pytest.mark.fault_scenario(42)
@pytest.mark.parametrize("is_served", [True, False])
def test_job_uses_a_limit_that_an_operator_raised(
    service: ServiceProcess, slurm: SlurmLab, pace: Pace, is_served: bool
) -> None:
    with service.client() as client:
        pace.set(SLOWLY)
        limited = {"partition": "gpu", "time_limit_minutes": 1}
        job = client.submit(paced_run(resources=limited, steps=600), code=pace.code)
        wait_until(lambda: client.checkpoints(job.id), 60, "the first checkpoint")
        (attempt,) = client.attempts(job.id)
        slurm.run("scontrol", "update", f"JobId={attempt.scheduler_id}", "TimeLimit=10")
        started, first = time.monotonic(), client.job(job.id).progress
        if not is_served:
            # The launcher queries Slurm itself.
            service.kill()
            time.sleep(60.0)
            service.start()
            service.client().close()
        assert first is not None
        # Without the longer limit it would have stopped after 45 s to save.
        wait_until(lambda: (client.job(job.id).progress or first).step > 400, 150, "more steps than fit into a minute")
        assert time.monotonic() - started > 60.0
        pace.set(0)
        assert wait_for_status(client, job.id, "succeeded", "failed", seconds=60).status == "succeeded"
        assert len(list(client.attempts(job.id))) == 1
