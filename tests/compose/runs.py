"""A job that lasts as long as tests need it, and checks of its final state."""

import time
from pathlib import Path
from typing import Any

from tests.support.compose_stack import Stack
from tests.support.wait import wait_until
from trainyard.client import Client, TrainyardError

CODE = Path(__file__).parent / "code"
STEPS, LOG_EVERY = 2000, 5
"""A run lasts 13 minutes unless its file `speed-up` exists, longer than any test acts on it."""


def slow_spec(name: str) -> dict[str, Any]:
    """Return a spec with one rank on each node, a point every five steps and a checkpoint every ten."""
    return {
        "name": name,
        "task": "custom",
        "target": "slow_spirals:build",
        "strategy": "ddp",
        "gpus": 2,
        "resources": {"partition": "main", "gpus_per_node": 1},
        "steps": STEPS,
        "batch": {"size": 64},
        "checkpoint": {"every_steps": 10, "keep_last": 2},
        "log": {"every_steps": LOG_EVERY},
        "restart": {"max_retries": 5},
    }


def script_spec(name: str) -> dict[str, Any]:
    """Return a spec of a short script that fits beside other jobs."""
    resources = {"partition": "main", "gpus_per_node": 1}
    return {"name": name, "task": "script", "argv": ["count.py", name], "gpus": 1, "resources": resources}


class LongRun:
    """A running job with slow steps."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.stack = stack
        stack.execute("reconciler", "rm", "-f", "/shared/speed-up")
        with stack.client() as client:
            self.id = client.submit(slow_spec(name), code=CODE).id
        self.wait_for_steps(steps=1, timeout=420)

    def step(self) -> int | None:
        """Return the reported step; None while the service does not respond."""
        try:
            with self.stack.client() as client:
                job = client.job(self.id)
        except TrainyardError:
            return None
        assert job.status not in ("failed", "cancelled", "succeeded"), f"{job.status}: {job.status_message}"
        return job.progress.step if job.progress else 0

    def wait_for_steps(self, steps: int = 2 * LOG_EVERY, timeout: float = 240.0) -> None:
        """Wait until `steps` more steps were reported."""
        first = wait_until(lambda: self.step() is not None and (self.step() or 0) + 1, timeout, "a response") - 1
        wait_until(lambda: (self.step() or 0) >= first + steps, timeout, f"step {first + steps}")

    def finish(self, timeout: float = 300.0) -> None:
        """Let the run finish; check that each point is stored once and that each attempt was one Slurm job."""
        self.stack.execute("reconciler", "touch", "/shared/speed-up")
        with self.stack.client() as client:
            job = client.wait(self.id, timeout=timeout)
            assert (job.status, job.status_reason) == ("succeeded", "completed"), job.status_message
            assert_complete(client, self.id)
            attempts = client.attempts(self.id)
            tags = [f"ty-main-{attempt.id}" for attempt in attempts]
            ids = {name: number for number, name in slurm_jobs(self.stack) if name in tags}
            entries = [name for _, name in slurm_jobs(self.stack) if name in tags]
            assert len(entries) == len(set(entries)), "an attempt was submitted twice"
            assert ids == {f"ty-main-{attempt.id}": attempt.scheduler_id for attempt in attempts}


def assert_complete(client: Client, job_id: str) -> None:
    """Assert that all points are stored, each once, and that the last checkpoint exists."""

    def steps() -> list[int]:
        return [point.step for point in client.points(job_id, ["train/loss"])]

    expected = [1, *range(LOG_EVERY, STEPS + 1, LOG_EVERY)]
    wait_until(lambda: len(steps()) >= len(expected), 30, "the last points")
    assert steps() == expected
    assert STEPS in {checkpoint.step for checkpoint in client.checkpoints(job_id)}


def slurm_jobs(stack: Stack) -> list[tuple[str, str]]:
    """Return scheduler id and name of each job in the accounting."""
    format_ = "--format=JobIDRaw,JobName%64"
    lines = stack.execute("reconciler", "sacct", "-X", "--noheader", "--parsable2", "--duplicates", format_)
    return [(number, name) for number, name in (line.split("|", 1) for line in lines.splitlines())]


def submit_with_retries(stack: Stack, name: str) -> str:
    """Submit a job, and repeat the request until there is a response."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with stack.client() as client:
                return client.submit(script_spec(name), code=CODE, idempotency_key=name).id
        except TrainyardError:
            assert time.monotonic() < deadline, "the service did not come back"
            time.sleep(0.2)
