"""`doctor --deep`: compares a job of Trainyard with a job that this account submits with sbatch by hand.

Values of variables may be secrets, and everybody reads logs: the job of Trainyard prints digests alone.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.cli.partition_checks import cause_of_repetition
from trainyard.client import Client, JobHandle, TrainyardError
from trainyard.contract.spec.environment import is_set_for_ranks, matches_any
from trainyard.contract.wire.cluster import PartitionResource
from trainyard.contract.wire.diagnostics import Finding, ok_finding, warning_finding
from trainyard.contract.wire.jobs import TERMINAL

_POLL_SECONDS = 1.0
_COMMAND_SECONDS = 60.0
_MINUTES = 5
_MARK = "environment of the job: "
_PROGRAM = f"""\
import hashlib, json, os

values = {{name: hashlib.sha256(value).hexdigest() for name, value in os.environb.items()}}
with open("/proc/self/limits") as limits:
    text = json.dumps([limits.read(), {{os.fsdecode(name): value for name, value in values.items()}}])
print({_MARK!r} + text, flush=True)
"""
_SEPARATOR = b"\n--\n"
_SCRIPT = """\
#!/bin/sh
cat /proc/self/limits && printf '\\n--\\n' && cat /proc/self/environ && printf '\\n--\\n'
"""
_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "LC_CTYPE")
"""Variables that shells, and Python in the locale C, set themselves."""
_TUNING = ("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "PSM2_*", "PSM3_*", "CUDA_*", "HSA_*", "MPICH_*", "OMPI_*", "*_PROXY")
"""Variables of sites without which jobs are often slow, or do not start."""
_LIMITS = ("Max open files", "Max processes", "Max locked memory", "Max stack size", "Max core file size")
_FIX_VARIABLES = (
    "if jobs need them, list them in TRAINYARD_JOB_ENVIRONMENT, where the service has them, or export them in the file "
    "of TRAINYARD_SITE_SETUP"
)
_FIX_REFUSED = "use a token that may run code, and see `trainyard cluster`"
_FIX_LIMITS = (
    "raise the limits of slurmd (such as LimitSTACK of its unit), or name them in TRAINYARD_SLURM_PROPAGATE, which "
    "copies those of the service"
)


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of a program on a node."""

    variables: Mapping[str, str]
    """Digests of the values."""
    limits: Mapping[str, str]
    """Soft limits by their names in `/proc/self/limits`."""


def compare_with_sbatch(client: Client, seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Run a job of each kind on the default partition, and yield the differences; nothing without Slurm.

    Args:
        seconds: How long to wait for both; both are cancelled after that, as after an interrupt.
    """
    partitions = [partition for partition in client.cluster().partitions if partition.state == "up"]
    if not partitions:
        return
    partition = next((one for one in partitions if one.default), partitions[0])
    if shutil.which("sbatch") is None:
        message = "not compared with a job by sbatch: this machine has no sbatch"
        yield warning_finding("environment", message, "run this on a machine of the cluster")
        return
    deadline = now() + seconds
    try:
        with _submitted(client, partition) as job, _submitted_by_hand(partition) as output:
            while (job.status not in TERMINAL or not _is_complete(output)) and now() < deadline:
                time.sleep(_POLL_SECONDS)
                job.refresh()
                if cause_of_repetition(client, job) is not None:
                    # Further attempts would only blame nodes.
                    break
            ours, theirs = _of_job(client, job), _of_output(output)
    except TrainyardError as error:
        yield warning_finding("environment", f"not compared with a job by sbatch: {error.message}", _FIX_REFUSED)
    except (OSError, subprocess.SubprocessError) as error:
        yield warning_finding("environment", f"not compared with a job by sbatch: {error}", "submit a job by hand")
    else:
        yield from differences(ours, theirs)


def differences(ours: JobEnvironment, theirs: JobEnvironment) -> Iterator[Finding]:
    """Yield the differences in variables and limits between a job of Trainyard and a job by sbatch."""
    lost = sorted(theirs.variables.keys() - ours.variables)
    changed = sorted(name for name in ours.variables.keys() & theirs.variables if not _agree(name, ours, theirs))
    parts = {
        "only by sbatch": lost,
        "only by Trainyard": sorted(ours.variables.keys() - theirs.variables),
        "with other values": changed,
    }
    message = "; ".join(f"{where}: {', '.join(names)}" for where, names in parts.items() if names)
    message = message or "a job has the variables of a job by sbatch"
    needs_advice = any(matches_any(name.upper(), _TUNING) for name in [*lost, *changed])
    yield warning_finding("variables", message, _FIX_VARIABLES) if needs_advice else ok_finding("variables", message)
    unequal = {name: (ours.limits[name], limit) for name, limit in theirs.limits.items() if ours.limits[name] != limit}
    listed = (f"{name.removeprefix('Max ')} {mine}, by sbatch {limit}" for name, (mine, limit) in unequal.items())
    text = "; ".join(listed) or "a job has the limits of a job by sbatch"
    is_lower = any(_number(mine) < _number(limit) for mine, limit in unequal.values())
    yield warning_finding("limits", text, _FIX_LIMITS) if is_lower else ok_finding("limits", text)


def _agree(name: str, ours: JobEnvironment, theirs: JobEnvironment) -> bool:
    return ours.variables[name] == theirs.variables[name]


def _number(limit: str) -> float:
    return float("inf") if limit == "unlimited" else float(limit)


@contextmanager
def _submitted(client: Client, partition: PartitionResource) -> Iterator[JobHandle]:
    """Submit a program that prints its environment. The job is cancelled if it has not ended, and deleted if it has."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "environment.py").write_text(_PROGRAM)
        spec = {
            "name": "doctor environment",
            "task": "script",
            "argv": ["environment.py"],
            "gpus": 1,
            "restart": {"max_retries": 0},
            "resources": {"partition": partition.name, "time_limit_minutes": _limit(partition)},
        }
        job = client.submit(spec, code=folder)
    try:
        yield job
    finally:
        with suppress(TrainyardError):
            if job.status not in TERMINAL:
                job.cancel()
            elif job.status == "succeeded":
                client.delete(job.id)


@contextmanager
def _submitted_by_hand(partition: PartitionResource) -> Iterator[Path]:
    """Submit the script with this process's environment, and yield its output, which is in a private folder."""
    with tempfile.TemporaryDirectory(prefix=".trainyard-doctor-", dir=Path.home()) as folder:
        script, output = Path(folder) / "environment.sh", Path(folder) / "output"
        script.write_text(_SCRIPT)
        options = [f"--partition={partition.name}", "--nodes=1", "--ntasks=1", f"--time={_limit(partition)}"]
        command = ["sbatch", "--parsable", *options, "--chdir=/", f"--output={output}", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
        if done.returncode != 0:
            raise OSError(f"sbatch refused its job: {done.stderr.strip()}")
        try:
            yield output
        finally:
            if not _is_complete(output):
                number = done.stdout.strip().partition(";")[0]
                subprocess.run(["scancel", number], capture_output=True, timeout=_COMMAND_SECONDS, check=False)  # noqa: S607


def _limit(partition: PartitionResource) -> int:
    return min(_MINUTES, partition.time_limit_minutes or _MINUTES)


def _is_complete(output: Path) -> bool:
    """Return whether the job by hand has written all. A network filesystem may show it late."""
    with suppress(OSError):
        return output.read_bytes().count(_SEPARATOR) >= 2
    return False


def _of_job(client: Client, job: JobHandle) -> JobEnvironment:
    """Raises OSError: the job printed nothing."""
    for line in client.logs(job.id, tail=100).text.splitlines():
        _, mark, text = line.partition(_MARK)
        if mark:
            limits, variables = json.loads(text)
            return JobEnvironment(_compared(variables), _soft_limits(limits))
    raise OSError(f"job {job.id} has not printed its environment: {job.status}: {job.status_message}")


def _of_output(output: Path) -> JobEnvironment:
    """Raises OSError: the job has not ended, or its output is not here."""
    if not _is_complete(output):
        raise OSError(f"the job by sbatch has not ended, or its node does not share {output.parent.parent}")
    limits, variables, _ = output.read_bytes().split(_SEPARATOR)
    pairs = (entry.partition(b"=") for entry in variables.split(b"\0") if entry)
    digests = {name.decode(errors="surrogateescape"): hashlib.sha256(value).hexdigest() for name, _, value in pairs}
    return JobEnvironment(_compared(digests), _soft_limits(limits.decode()))


def _compared(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without names that differ between any two jobs."""
    return {name: value for name, value in variables.items() if name not in _OF_SHELLS and not is_set_for_ranks(name)}


def _soft_limits(text: str) -> dict[str, str]:
    return {
        name: line.removeprefix(name).split()[0]
        for line in text.splitlines()
        for name in _LIMITS
        if line.startswith(name)
    }
