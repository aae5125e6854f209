"""Real jobs of a real service, observed from outside."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import (
    attempt_of,
    losses,
    processes_of,
    run_of,
    spooled_losses,
    wait_for_status,
    wait_for_step,
)
from tests.support.wait import wait_until
from trainyard.client import Client, InvalidRequestError
from trainyard.contract.spec.templates import fill_template
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e


def parity(**changes: Any) -> dict[str, Any]:
    plain = {"steps": 30, "epochs": None, "batch.size": 12, "checkpoint.every_steps": 5, "log.every_steps": 1}
    return fill_template("mlp_parity", plain | {key.replace("__", "."): value for key, value in changes.items()})


def long_run(**changes: Any) -> dict[str, Any]:
    """Return a spec of `digits` with enough steps to be interrupted and frequent checkpoints."""
    plain = {
        "epochs": None,
        "steps": 400,
        "model.channels": 24,
        "checkpoint.every_steps": 20,
        "evaluation.every_steps": None,
        "log.every_steps": 1,
    }
    return fill_template("digits_ddp", plain | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.slow
def test_digits_reach_97_percent_and_leave_a_checkpoint_and_an_export(client: Client, runs: Path) -> None:
    job = client.submit(fill_template("digits_ddp", {}))
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert float(done.metrics["eval/accuracy"] or 0) >= 0.97
    assert done.progress is not None
    assert done.progress.step == done.progress.total_steps
    checkpoints = list(client.checkpoints(job.id))
    assert checkpoints[-1].step == done.progress.total_steps
    on_disk = [c.step for c in run_of(runs, job.id).complete_checkpoints()]
    assert [c.step for c in checkpoints] == on_disk
    assert (run_of(runs, job.id).export / "model.safetensors").is_file()
    assert str(runs / job.id) in client.script(job.id).script
    assert "step 276/276" in client.logs(job.id, rank="0", tail=20).text


@pytest.mark.heavy
def test_a_killed_service_loses_and_duplicates_no_point(service: ServiceProcess, client: Client, runs: Path) -> None:
    job = client.submit(long_run(gpus=1))
    wait_for_step(client, job.id, 20)
    service.kill()
    spool = attempt_of(run_of(runs, job.id), 1).spool_file(1)
    size = spool.stat().st_size
    wait_until(lambda: spool.stat().st_size > size + 20_000, 60, "training to go on without the service")
    service.start()
    with service.client() as again:
        done = wait_for_status(again, job.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message
        attempts = list(again.attempts(job.id))
        assert [(a.number, a.execution) for a in attempts] == [(1, 1)]
        own = spooled_losses(run_of(runs, job.id), 1, 1)
        assert sorted(own) == list(range(1, 401))
        assert losses(again, job.id) == own


def test_second_job_waits_and_cancelled_job_ends_within_ten_seconds(client: Client) -> None:
    first, second = client.submit(long_run(steps=100_000)), client.submit(parity(name="the second", gpus=1))
    wait_for_step(client, first.id, 1)
    waiting = wait_for_status(client, second.id, "pending")
    assert first.id in waiting.status_message
    assert "Waiting for 1 of 2 local slots (2 in use)" in waiting.status_message
    attempt = client.job(first.id).attempt
    assert attempt is not None
    assert len(processes_of(attempt.id)) >= 4, "controller, launcher, torchrun and two ranks"
    cancelled_at = time.monotonic()
    client.cancel(first.id)
    wait_until(lambda: not processes_of(attempt.id), 10, "its processes to be gone")
    wait_for_status(client, first.id, "cancelled", seconds=max(0.1, 12 - (time.monotonic() - cancelled_at)))
    assert wait_for_status(client, second.id, "succeeded", "failed").status == "succeeded"


def test_job_larger_than_the_machine_is_rejected_with_numbers(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="is 3, but this service runs at most 2 ranks at once") as refused:
        client.submit(parity(gpus=3))
    assert refused.value.param == "gpus"


@pytest.mark.slow
def test_warm_up_longer_than_the_run_is_rejected_by_the_worker(client: Client) -> None:
    job = client.submit(parity(steps=None, epochs=1, schedule__warmup_steps=100))
    done = wait_for_status(client, job.id, "failed", "succeeded")
    assert "schedule.warmup_steps is 100, more than the run's 10 steps" in done.status_message
    assert len(list(client.attempts(job.id))) == 1


@pytest.mark.slow
def test_a_diverging_run_fails_with_the_step_in_its_error(client: Client) -> None:
    job = client.submit(parity(optimizer__lr=1e30))
    done = wait_for_status(client, job.id, "failed", "succeeded")
    assert (done.status, done.status_reason) == ("failed", "error")
    assert done.error is not None
    assert "step" in done.error.message
    assert len(list(client.attempts(job.id))) == 1, "trying again would only diverge again"


@pytest.mark.slow
def test_gpt_reaches_2_2_nats_per_byte_on_python_source(client: Client) -> None:
    job = client.submit(fill_template("gpt_stdlib", {}))
    done = wait_for_status(client, job.id, "succeeded", "failed", seconds=900)
    assert done.status == "succeeded", done.status_message
    assert float(done.metrics["train/loss"] or 9) < 2.2
    assert float(done.metrics["eval/loss"] or 9) < 2.2


@pytest.mark.slow
def test_a_time_limit_is_continued_from_the_last_checkpoint(client: Client) -> None:
    job = client.submit(long_run(steps=100_000, resources__time_limit_minutes=1))
    wait_until(lambda: len(list(client.attempts(job.id))) == 2, 150, "a second attempt")
    wait_for_status(client, job.id, "running")
    wait_until(lambda: (client.job(job.id).attempt or job.attempt).resumed_from_step is not None, 60, "its start")  # type: ignore[union-attr]
    attempts = list(client.attempts(job.id))
    assert attempts[0].exit_reason == "time_limit"
    assert (attempts[1].resumed_from_step or 0) > 0
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled", seconds=15)
