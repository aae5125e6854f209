"""Helpers for tests with real jobs: wait for a status or step, inspect processes, read losses."""

import os
import signal
from pathlib import Path

import psutil

from tests.support.wait import wait_until
from trainyard.client import Client, TrainyardError
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.reports import MetricsBatch
from trainyard.contract.wire.spool import parse_spool

JOB_SECONDS = 120.0


def wait_for_status(client: Client, job_id: str, *statuses: str, seconds: float = JOB_SECONDS) -> JobResource:
    """Wait until the job has one of these statuses, and return it."""

    def reached() -> JobResource | None:
        job = client.job(job_id).resource
        return job if job.status in statuses else None

    try:
        return wait_until(reached, seconds, f"{job_id} to be {' or '.join(statuses)}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_describe(client, job_id)}") from None


def _describe(client: Client, job_id: str) -> str:
    """Return what explains why a job is not as a test expects: its status, its attempts and the ends of its logs."""
    job = client.job(job_id).resource
    lines = [f"status {job.status}, {job.status_reason}: {job.status_message}", f"error: {job.error}"]
    lines += [f"attempt: {attempt}" for attempt in client.attempts(job_id)]
    for rank in ("launch", 0):
        try:
            lines.append(f"log {rank}:\n{client.logs(job_id, rank=rank, tail=4096).text}")
        except TrainyardError as error:
            lines.append(f"log {rank}: {error}")
    return "\n".join(lines)


def wait_for_step(client: Client, job_id: str, step: int) -> None:
    """Wait until the step was reported."""

    def reached() -> bool:
        progress = client.job(job_id).progress
        return progress is not None and progress.step >= step

    wait_until(reached, JOB_SECONDS, f"step {step} of {job_id}")


def processes_of(attempt_id: str) -> list[psutil.Process]:
    """Return the live processes with the attempt's env tag."""
    matching = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(ATTEMPT_VARIABLE) == attempt_id and process.status() != psutil.STATUS_ZOMBIE:
                matching.append(process)
        except psutil.Error:
            continue
    return matching


def kill_rank(attempt_id: str, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to one rank."""
    (victim,) = [p for p in processes_of(attempt_id) if p.environ().get("RANK") == str(rank)]
    os.kill(victim.pid, number)


def losses(client: Client, job_id: str) -> dict[int, str]:
    """Return the stored `train/loss` by step, with all digits."""
    (series,) = client.metrics(job_id, ["train/loss"], max_points=1_000_000).series
    assert len(series.steps) == len(set(series.steps)), "a step occurs twice"
    return {step: repr(value) for step, value in zip(series.steps, series.values, strict=True)}


def spooled_losses(run: RunLayout, attempt: int, execution: int) -> dict[int, str]:
    """Return `train/loss` by step from rank 0's spool."""
    losses_by_step: dict[int, str] = {}
    for record in parse_spool(attempt_of(run, attempt).spool_file(execution)):
        body = record.body()
        if isinstance(body, MetricsBatch):
            losses_by_step |= {p.step: repr(p.value) for p in body.points if p.key == "train/loss"}
    return losses_by_step


def run_of(runs: Path, job_id: str) -> RunLayout:
    return RunLayout(runs / job_id)


def attempt_of(run: RunLayout, number: int) -> AttemptLayout:
    """The folder of the attempt with this number."""
    (folder,) = run.attempts.glob(f"{number}-*")
    return AttemptLayout(folder)
