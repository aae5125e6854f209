"""Kill, pause, resume, retry and fork real runs: the losses equal those of an undisturbed run, to the last digit."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.e2e.test_jobs import long_run
from tests.support.live import kill_rank, losses, processes_of, run_of, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace, paced_run
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobResource
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def undisturbed(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[int, str]]:
    """Return the losses of an undisturbed run with that optimizer."""

    @cache
    def train(optimizer: str) -> dict[int, str]:
        with service.client() as client:
            job = client.submit(interrupted_run(optimizer), code=Pace(tmp_path_factory.mktemp(optimizer)).code)
            wait_for_status(client, job.id, "succeeded")
            return losses(client, job.id)

    return train


def interrupted_run(optimizer: str) -> dict[str, Any]:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    return paced_run(steps=120, optimizer={"name": optimizer, "lr": 0.01, **momentum})


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_killed_rank_resumes_on_the_same_losses(client: Client, optimizer: str, pace: Pace, undisturbed) -> None:
    pace.set(SLOWLY)
    job = client.submit(interrupted_run(optimizer), code=pace.code)
    wait_until(lambda: 10 in {saved.step for saved in client.checkpoints(job.id)}, 120, "its second checkpoint")
    attempt = client.job(job.id).attempt
    assert attempt is not None
    kill_rank(attempt.id, 1)
    pace.set(0)
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert done.attempt is not None
    assert (done.attempt.number, done.attempt.execution) == (1, 2)
    assert (done.attempt.resumed_from_step or 0) >= 10
    assert losses(client, job.id) == undisturbed(optimizer)


@pytest.mark.slow
def test_pause_resume_and_retry_do_not_change_the_losses(client: Client, pace: Pace, undisturbed) -> None:
    pace.set(SLOWLY)
    job = client.submit(interrupted_run("adamw"), code=pace.code)
    wait_for_step(client, job.id, 7)
    client.pause(job.id)
    paused = wait_for_status(client, job.id, "paused")
    assert paused.attempt is not None
    assert not processes_of(paused.attempt.id), "its place is given back"
    assert (paused.last_checkpoint_step or 0) >= 7
    assert paused.status_message == f"Paused after step {paused.last_checkpoint_step}. The allocation was released."
    client.resume(job.id)
    wait_for_step(client, job.id, (paused.last_checkpoint_step or 0) + 7)
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    pace.set(0)
    client.retry(job.id)
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert [a.exit_reason for a in client.attempts(job.id)] == ["paused", "user_cancelled", "completed"]
    assert losses(client, job.id) == undisturbed("adamw")


@pytest.mark.slow
def test_retry_from_scratch_restarts_at_step_1(client: Client, service: ServiceProcess, pace: Pace) -> None:
    pace.set(SLOWLY)
    job = client.submit(paced_run(steps=60), code=pace.code)
    wait_for_step(client, job.id, 12)
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    pace.set(0)
    client.retry(job.id, start="scratch")
    assert list(client.checkpoints(job.id)) == []
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.attempt is not None
    assert done.attempt.resumed_from_step == 0
    assert sorted(losses(client, job.id)) == list(range(1, 61))
    on_disk = [checkpoint.step for checkpoint in run_of(service.runs_dir, job.id).complete_checkpoints()]
    assert on_disk == [checkpoint.step for checkpoint in client.checkpoints(job.id)]


@pytest.fixture(scope="module")
def source(service: ServiceProcess) -> JobResource:
    """Return a run that has ended, with a checkpoint every twenty steps."""
    with service.client() as client:
        job = client.submit(long_run(steps=80, checkpoint__keep_last=10))
        return wait_for_status(client, job.id, "succeeded")


@pytest.mark.slow
def test_a_fork_continues_the_run_or_only_takes_its_weights(client: Client, source: JobResource) -> None:
    expected = losses(client, source.id)
    same = client.submit(long_run(steps=80, checkpoint__keep_last=10, resume_from=f"{source.id}:40"))
    other = client.submit(long_run(steps=20, gpus=1, seed=1, resume="weights", resume_from=f"{source.id}:80"))
    done = wait_for_status(client, same.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert losses(client, same.id) == {step: loss for step, loss in expected.items() if step > 40}
    done = wait_for_status(client, other.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    other_losses = losses(client, other.id)
    assert sorted(other_losses) == list(range(1, 21))
    assert float(other_losses[1]) < float(expected[1]) / 2, "it begins with trained weights"


@pytest.mark.slow
def test_fork_with_another_strategy_continues_the_run(client: Client, source: JobResource) -> None:
    expected = losses(client, source.id)
    same = client.submit(long_run(steps=80, strategy="fsdp", resume_from=f"{source.id}:40"))
    assert same.origin is not None
    assert same.origin.continues
    other = client.submit(long_run(steps=20, strategy="zero2", seed=1, resume="weights", resume_from=f"{source.id}:80"))
    wait_for_status(client, same.id, "succeeded")
    for step, loss in losses(client, same.id).items():
        assert float(loss) == pytest.approx(float(expected[step]), rel=1e-3, abs=1e-5)
    done = wait_for_status(client, other.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    assert float(losses(client, other.id)[1]) < float(expected[1]) / 2
