"""Losses stay identical under SIGKILL of a rank, torchrun or the whole node at random times."""

import os
import random
import signal
import time

import pytest

from tests.integration.worker.harness import FakeService, Run, processes_of, run_layout, spooled, wait_for
from trainyard.contract.spec.training_spec import dump_spec

SPEC = {
    "epochs": None,
    "seed": 5,
    "gpus": 2,
    "strategy": "fsdp",
    "batch.micro_size": 2,
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 1.0},
    "checkpoint": {"every_steps": 4},
}
IN_MEMORY = {"checkpoint": {"every_steps": 40, "memory_steps": 1}, "restart": {"fork_ranks": True}}
SLOW_STEPS = [{"kind": "sleep", "seconds": 0.05}]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, IN_MEMORY], ids=["", "memory"])
@pytest.mark.parametrize(
    "kills",
    [pytest.param(2, marks=pytest.mark.timeout(200)), pytest.param(50, marks=pytest.mark.timeout(1800))],
)
def test_losses_after_random_kills_equal_an_undisturbed_run(tmp_path, kills, options):
    rng = random.Random(kills)
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, SPEC | {"steps": 60 + 15 * kills} | options, max_restarts=100)
        number = done = 0
        while done < kills:
            number += 1
            attempt = run.start(number, SLOW_STEPS)
            done += kill_until_ended(run, attempt, rng, kills - done)
            assert run.manifest(run.spec.steps) not in map(str, run.layout.checkpoints.glob("*/manifest.json"))
        last = run.run(number + 1, seconds=300)
    expected = {
        int(step): value
        for step, value in run_layout(2, {"case": {"spec": dump_spec(run.spec)}}, tmp_path / "reference")[0]["case"][
            "series"
        ]["train/loss"].items()
    }
    reported, trained = {}, 0
    for attempt in (run.layout.attempt(str(n)) for n in range(1, number + 2)):
        for execution, losses in sorted(reported_losses(attempt).items()):
            assert losses == {step: expected[step] for step in losses}, execution
            reported |= losses
            trained += bool(losses)
    assert reported == expected
    assert trained > kills / 2, "most kills must happen while it trains"
    assert processes_of(last) == []


def kill_until_ended(run, attempt, rng, max_kills):
    """Kill ranks, which torchrun restarts, until torchrun or the node is killed; return the number of kills."""
    done = 0
    while done < max_kills and run.process.poll() is None:
        wait_a_while(run, attempt, rng)
        whole = rng.random() < 0.5
        victims = processes_of(attempt) if whole else ranks_of(attempt)
        if not victims:
            continue
        for pid in victims if whole else [rng.choice(victims)]:
            kill(pid)
        done += 1
        if whole:
            kill(run.process.pid)
            run.process.wait(10)
            wait_for(lambda: processes_of(attempt) == [], "the end of every process")
            return done
    kill(run.process.pid)
    run.process.wait(10)
    for pid in processes_of(attempt):
        kill(pid)
    wait_for(lambda: processes_of(attempt) == [], "the end of every process")
    return done


def wait_a_while(run, attempt, rng):
    """Wait for some steps of training, or a short time during startup."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0.0, 3.0))
        return
    goal = reported_steps(attempt) + rng.randint(1, 12)
    wait_for(lambda: reported_steps(attempt) >= goal or run.process.poll() is not None, f"{goal} steps", 120)
    time.sleep(rng.uniform(0.0, 0.1))


def reported_steps(attempt):
    """Return the number of steps in the spools of the attempt."""
    return sum(len(losses) for losses in reported_losses(attempt).values())


def reported_losses(attempt):
    """Return the losses in the spool of each execution."""
    executions = (int(file.stem.split("-")[1]) for file in attempt.spool.glob("execution-??????.jsonl"))
    return {execution: spooled(attempt, execution) for execution in executions}


def ranks_of(attempt):
    """Return the pids of the ranks and of torchrun, their parent."""
    pids = []
    for pid in processes_of(attempt):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/comm") as name:
                arguments, is_fork = file.read().split(b"\0"), name.read().startswith("trainyard-")
        except OSError:
            continue
        if is_fork or (b"worker" in arguments and b"-m" in arguments):
            pids.append(pid)
    return pids


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
