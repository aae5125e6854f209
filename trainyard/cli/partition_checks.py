"""`doctor --deep`: a short job on each partition, or on each node, with all the requirements of other jobs.

The job starts only if the node has the interpreter and the worker, and the folder of the run; it requests a GPU where
the partition has GPUs; and it reports to the service, whose status message states if a worker cannot reach it.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from trainyard.client import Client, JobHandle, TrainyardError
from trainyard.contract.kinds.strategies import AUTO_ON_ONE_RANK
from trainyard.contract.spec.training_spec import NODE_TEST
from trainyard.contract.wire.cluster import PartitionResource
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding
from trainyard.contract.wire.jobs import TERMINAL

_POLL_SECONDS = 1.0
_SINFO_SECONDS = 30.0
_MAX_JOBS = 64
"""Jobs at once: more would fill the queue of a large cluster."""
_OUT_OF_SERVICE = frozenset(
    {"down", "drained", "draining", "fail", "failing", "error", "unknown", "future", "inval", "maint", "reserved"}
)
"""States of nodes that start no job of this account now."""
_MINUTES = 5
"""Time limit of a job, unless the partition's is lower. The job takes seconds; imports from a cold disk a minute."""


def check_partitions(client: Client, seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Run a job on each partition that is up, all at once, and yield a finding for each as it ends.

    Args:
        seconds: How long to wait for all; jobs that have not ended by then are cancelled, as after an interrupt.
    """
    specs: list[tuple[str, dict[str, object]]] = []
    partitions: list[PartitionResource | None] = [*client.cluster().partitions]
    for partition in partitions or [None]:
        name = f"partition {partition.name}" if partition is not None else "local queue"
        if partition is not None and partition.state != "up":
            state = "drained" if partition.state == "drain" else partition.state
            yield warning_finding(name, f"not checked: the partition is {state}", "set it up in Slurm")
        else:
            specs.append((name, _spec(partition)))
    yield from _run_jobs(client, specs, now() + seconds, now)


def check_nodes(client: Client, seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Run a job on each node, in a partition that is up, and yield a finding for each node as it ends.

    Args:
        seconds: As for `check_partitions`.
    """
    partitions = {one.name: one for one in client.cluster().partitions if one.state == "up"}
    if not partitions:
        return
    if shutil.which("sinfo") is None:
        message = "not checked one by one: this machine has no sinfo, which lists them"
        yield warning_finding("nodes", message, "run this on a machine of the cluster")
        return
    try:
        command = ["sinfo", "--all", "--Node", "--noheader", "--format=%N|%R|%T"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SINFO_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield warning_finding("nodes", f"not checked one by one: {error}", "see the finding slurmctld")
        return
    specs = []
    for node, (partition, state) in nodes_of(listed, partitions).items():
        if state.rstrip("*~#!%$@^+-") in _OUT_OF_SERVICE or state.endswith("*"):
            fix = f"`sinfo --list-reasons --nodes={node}` shows why"
            yield warning_finding(f"node {node}", f"not checked: it is {state} in Slurm", fix)
        else:
            specs.append((f"node {node}", _spec(partitions[partition], node)))
    yield from _run_jobs(client, specs, now() + seconds, now)


def nodes_of(listed: str, partitions: Mapping[str, PartitionResource]) -> dict[str, tuple[str, str]]:
    """Return the partition in which to try each node, preferably the default partition, and the state of the node.

    Args:
        listed: A node, a partition and a state on each line, as sinfo prints them; a node may occur several times.
        partitions: The partitions that are up, by name.
    """
    nodes = dict[str, tuple[str, str]]()
    for line in listed.splitlines():
        node, _, rest = line.partition("|")
        partition, _, state = rest.partition("|")
        if partition in partitions and (node not in nodes or partitions[partition].default):
            nodes[node] = partition, state
    return nodes


def _run_jobs(
    client: Client, specs: Sequence[tuple[str, dict[str, object]]], deadline: float, now: Callable[[], float]
) -> Iterator[Finding]:
    """Run the jobs, a limited number at once, and yield a finding for each by its name."""
    waiting, jobs = list(reversed(specs)), dict[str, JobHandle]()
    unreachable: set[str] = set()
    try:
        while (waiting or jobs) and now() < deadline:
            while waiting and len(jobs) < _MAX_JOBS:
                name, spec = waiting.pop()
                try:
                    jobs[name] = client.submit(spec)
                except TrainyardError as error:
                    yield error_finding(name, f"the job was refused: {error.message}", "see `trainyard cluster`")
            for name, job in list(jobs.items()):
                job.refresh()
                unreachable |= {name} if job.condition and job.condition.code == "worker_unreachable" else set()
                if (cause := cause_of_repetition(client, job)) is not None:
                    fix = f"read the job, which remains for inspection: trainyard show {job.id}"
                    yield error_finding(name, f"job {job.id} did not succeed at once: {cause.removesuffix('.')}", fix)
                    with suppress(TrainyardError):
                        jobs.pop(name).cancel()
                elif job.status in TERMINAL:
                    yield _finding(client, name, jobs.pop(name), unreachable=name in unreachable)
            if jobs:
                time.sleep(_POLL_SECONDS)
        for name, job in jobs.items():
            message = f"job {job.id} has not ended in time: {job.status}: {_sentence(job)}"
            fix = "raise --timeout" if job.status == "running" else "wait for free nodes, or raise --timeout"
            yield warning_finding(name, message, f"{fix}; the job is cancelled")
        for name, _ in reversed(waiting):
            yield warning_finding(name, "not checked in time", "raise --timeout")
    finally:
        for job in jobs.values():
            with suppress(TrainyardError):
                job.cancel()


def cause_of_repetition(client: Client, job: JobHandle) -> str | None:
    """Return why the first attempt ended, if another attempt follows: the service blames the node, or the site, and
    would try for days. None: the job has, or needs, no other attempt."""
    attempt = job.resource.attempt
    if attempt is None or (attempt.number == 1 and (attempt.ended_at is None or job.status in TERMINAL)):
        return None
    was_submitted = False
    for event in client.events(job.id):
        status = event.data.get("status") if event.type == "status" else None
        was_submitted |= status == "pending"
        if status == "queued" and was_submitted:
            return event.message
    return "its first attempt ended"


def _sentence(job: JobHandle) -> str:
    """Return the status message without its last period: the caller ends the sentence."""
    return str(job.status_message).removesuffix(".")


def _spec(partition: PartitionResource | None, node: str | None = None) -> dict[str, object]:
    limit = partition.time_limit_minutes if partition is not None else None
    resources: dict[str, object] = {"time_limit_minutes": min(_MINUTES, limit or _MINUTES)}
    if partition is not None:
        resources["partition"] = partition.name
    if node is not None:
        resources["options"] = {"nodelist": node}
    return {
        "name": f"doctor {node or (partition.name if partition is not None else 'local')}",
        "task": "regression",
        "strategy": AUTO_ON_ONE_RANK,
        "gpus": 1,
        "model": {"source": "builtin", "name": "mlp"},
        "data": {"source": "builtin", "name": "parity"},
        "steps": 3,
        "batch": {"size": 10},
        "restart": {"max_retries": 0},
        "checkpoint": {"export": False},
        "resources": resources,
        "metadata": {NODE_TEST: "doctor"},
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
            name,
            message,
            "check that the node reaches TRAINYARD_WORKER_URL (else TRAINYARD_PUBLIC_URL) and trusts its certificate",
        )
    with suppress(TrainyardError):
        client.delete(job.id)
    started, ended = job.resource.started_at, job.resource.finished_at
    took = f" in {(ended - started).total_seconds():.0f} s" if started is not None and ended is not None else ""
    return ok_finding(name, f"a job ran{where}{took}: interpreter, run directory and route to the service work")
