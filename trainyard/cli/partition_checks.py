"""`doctor --deep`: a short job on each partition, which needs all that other jobs need.

The job starts only if the node has the interpreter and the worker, and the folder of the run; it requests a GPU where
the partition has GPUs; and it reports to the service, whose status message states if a worker cannot reach it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from trainyard.client import Client, JobHandle, TrainyardError
from trainyard.contract.wire.cluster import PartitionResource
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding
from trainyard.contract.wire.jobs import TERMINAL

_POLL_SECONDS = 1.0
_MINUTES = 5
"""Time limit of a job, unless the partition's is lower. The job takes seconds; imports from a cold disk a minute."""


def check_partitions(client: Client, seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Run a job on each partition that is up, all at once, and yield a finding for each as it ends.

    Args:
        seconds: How long to wait for all; jobs that have not ended by then are cancelled, as after an interrupt.
    """
    deadline, jobs = now() + seconds, dict[str, JobHandle]()
    unreachable: set[str] = set()
    try:
        partitions: list[PartitionResource | None] = [*client.cluster().partitions]
        for partition in partitions or [None]:
            name = f"partition {partition.name}" if partition is not None else "local queue"
            if partition is not None and partition.state != "up":
                state = "drained" if partition.state == "drain" else partition.state
                yield warning_finding(name, f"not checked: the partition is {state}", "set it up in Slurm")
                continue
            try:
                jobs[name] = client.submit(_spec(partition))
            except TrainyardError as error:
                yield error_finding(name, f"the job was refused: {error.message}", "see `trainyard cluster`")
        while jobs and now() < deadline:
            for name, job in list(jobs.items()):
                job.refresh()
                unreachable |= {name} if job.condition and job.condition.code == "worker_unreachable" else set()
                if job.status in TERMINAL:
                    yield _finding(client, name, jobs.pop(name), unreachable=name in unreachable)
            if jobs:
                time.sleep(_POLL_SECONDS)
        for name, job in jobs.items():
            message = f"job {job.id} has not ended after {seconds:g} s: {job.status}: {_sentence(job)}"
            fix = "raise --timeout" if job.status == "running" else "wait for free nodes, or raise --timeout"
            yield warning_finding(name, message, f"{fix}; the job is cancelled")
    finally:
        for job in jobs.values():
            with suppress(TrainyardError):
                job.cancel()


def _sentence(job: JobHandle) -> str:
    """Return the status message without its last period: the caller ends the sentence."""
    return str(job.status_message).removesuffix(".")


def _spec(partition: PartitionResource | None) -> dict[str, object]:
    limit = partition.time_limit_minutes if partition is not None else None
    resources: dict[str, object] = {"time_limit_minutes": min(_MINUTES, limit or _MINUTES)}
    if partition is not None:
        resources["partition"] = partition.name
    return {
        "name": f"doctor {partition.name if partition is not None else 'local'}",
        "task": "regression",
        "strategy": "single",
        "gpus": 1,
        "model": {"source": "builtin", "name": "mlp"},
        "data": {"source": "builtin", "name": "parity"},
        "steps": 3,
        "batch": {"size": 10},
        "restart": {"max_retries": 0},
        "checkpoint": {"export": False},
        "resources": resources,
    }


def _finding(client: Client, name: str, job: JobHandle, *, unreachable: bool) -> Finding:
    nodes = ", ".join(job.resource.attempt.nodes) if job.resource.attempt is not None else ""
    where = f" on {nodes}" if nodes else ""
    if job.status != "succeeded":
        fix = f"read the job, which remains for inspection: trainyard show {job.id}"
        return error_finding(name, f"job {job.id}{where}: {job.status}: {_sentence(job)}", fix)
    if unreachable:
        message = f"job {job.id}{where} trained, but its worker could not reach the service"
        return warning_finding(
            name, message, "check that the node reaches TRAINYARD_PUBLIC_URL and trusts its certificate"
        )
    with suppress(TrainyardError):
        client.delete(job.id)
    started, ended = job.resource.started_at, job.resource.finished_at
    took = f" in {(ended - started).total_seconds():.0f} s" if started is not None and ended is not None else ""
    return ok_finding(name, f"a job ran{where}{took}: interpreter, run directory and route to the service work")
