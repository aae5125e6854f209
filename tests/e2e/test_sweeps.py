"""Searches with real workers: a trial that was paused at rungs makes the updates of an undisturbed run."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.live import losses, wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client, Search
from trainyard.contract.wire.sweeps import SweepDetail
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e

SPEC: dict[str, Any] = {
    "name": "searched",
    "task": "regression",
    "gpus": 1,
    "strategy": "single",
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 40,
    "batch": {"size": 8},
    "optimizer": {"name": "adamw", "lr": 0.01},
    "schedule": {"name": "cosine", "warmup_steps": 5},
    "evaluation": {"every_steps": 5},
    "log": {"every_steps": 1},
    "checkpoint": {"export": False},
}


def wait_for_end(client: Client, sweep_id: str, seconds: float = 240) -> SweepDetail:
    wait_until(lambda: client.sweep(sweep_id).state != "running", seconds, "the end of the search")
    return client.sweep(sweep_id)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_promoted_trial_has_the_losses_of_an_undisturbed_run(client: Client) -> None:
    search = Search.model_validate(
        {"algorithm": "asha", "space": {"seed": "choice:7"}, "max_trials": 2, "min_steps": 10, "eta": 2}
    )
    sweep = client.submit_sweep(SPEC, search=search, max_parallel=1)
    assert sweep.rung_steps == [10, 20]
    done = wait_for_end(client, sweep.id)
    assert sorted(member.state for member in done.members) == ["completed", "stopped_early"], done.members
    assert done.best is not None
    attempts = list(client.attempts(done.best))
    assert [(attempt.exit_reason, attempt.resumed_from_step) for attempt in attempts] == [
        ("paused", 0),
        ("paused", 10),
        ("completed", 20),
    ]
    undisturbed = client.submit({**SPEC, "seed": 7})
    wait_for_status(client, undisturbed.id, "succeeded")
    curve = losses(client, done.best)
    assert sorted(curve) == list(range(1, 41))
    assert curve == losses(client, undisturbed.id)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_service_that_is_killed_twenty_times_proposes_nothing_twice(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, local_slots="2", tick_seconds="0.3")
    service.start()
    search = {"algorithm": "tpe", "space": {"optimizer.lr": "log:1e-4:1e-1"}, "max_trials": 30}
    spec = {**SPEC, "steps": 5}
    with service.client() as client:
        sweep_id = client.submit_sweep(spec, search=search, max_parallel=2).id
    for kill in range(20):
        started = 1 + kill * 28 // 20
        with service.client() as client:
            wait_until(lambda: client.sweep(sweep_id).size >= started, 120, f"{started} trials")  # noqa: B023
        service.kill()
        service.start()
    try:
        with service.client() as client:
            done = wait_for_end(client, sweep_id, 400)
            jobs = [member.job_id for member in done.members]
            listed = [job.id for job in client.jobs(sweep=sweep_id)]
    finally:
        service.stop()
    assert done.counts == {"succeeded": 30}
    assert [member.number for member in done.members] == list(range(30))
    assert len(set(jobs)) == 30
    assert sorted(listed) == sorted(map(str, jobs))
