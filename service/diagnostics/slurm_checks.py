"""Checks of Slurm from the machine of the service: its commands, munge, and the interpreter on the nodes."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.core.python_version import describe_missing
from service.core.settings import Settings
from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.dialect import Dialect
from service.scheduler.slurm.sbatch_output import parse_forecast
from trainyard.contract.wire.cluster import PartitionResource
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo")
_SECONDS = 10.0
_CREDENTIALS_ERROR = re.compile(r"munge|authenticat|credential", re.IGNORECASE)


def commands(_settings: Settings) -> Finding:
    """Whether Slurm's client commands are installed."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        return error_finding(
            "slurm", f"not found: {', '.join(missing)}", "install Slurm's client commands, or correct PATH"
        )
    return ok_finding("slurm", _run("sbatch", "--version").stdout.strip())


def controller(_settings: Settings) -> Finding:
    """Whether slurmctld answers and accepts the credentials of the service."""
    if shutil.which("sinfo") is None:
        return error_finding(
            "slurmctld", "cannot be checked without sinfo", "install Slurm's client commands, or correct PATH"
        )
    result = _run("sinfo", "--noheader")
    return controller_finding(result.returncode, result.stderr)


def controller_finding(status: int, stderr: str) -> Finding:
    """The finding for the exit status and error output of `sinfo`."""
    if status == 0:
        return ok_finding("slurmctld", "answers")
    reason = (stderr.strip().splitlines() or ["no reason given"])[-1]
    if _CREDENTIALS_ERROR.search(stderr):
        fix = (
            "start munged on this machine, with the cluster's key and a clock that agrees; in a container mount the "
            "folder of its socket (CLUSTER_MUNGE), and after a restart of munged restart the reconciler"
        )
        return error_finding("munge", f"Slurm rejects the credentials: {reason}", fix)
    return error_finding("slurmctld", f"sinfo fails: {reason}", "is slurmctld up? is slurm.conf here?")


def requests(settings: Settings) -> Finding:
    """Whether Slurm accepts the forms of requests that the settings choose, with and without a GPU."""
    dialect, commands = Dialect.of(settings), SlurmCommands()
    chosen = f"memory by {dialect.memory}, GPUs by {dialect.gpus}, limits by {dialect.propagate or 'slurm.conf'}"
    try:
        partitions = [partition for partition in commands.sinfo().partitions if partition.state == "up"]
        refused = dict[str, str]()
        for partition in {one.name: one for one in _tested(partitions)}.values():
            uses_gpus = any(shape.gpus for shape in partition.shapes)
            script = dialect.test_script(partition.name, uses_gpus=uses_gpus)
            forecast = parse_forecast(*commands.test_only(script))
            refused |= {partition.name: forecast.message} if not forecast.accepted else {}
    except SchedulerUnavailableError as error:
        return warning_finding("requests", f"cannot be checked: {error}", "see the finding slurmctld")
    if not refused:
        return ok_finding("requests", f"{chosen}; Slurm accepts them")
    message = "; ".join(f"partition {name}: {text.removesuffix('.')}" for name, text in refused.items())
    fix = (
        "compare TRAINYARD_SLURM_MEMORY_OPTION, _GPU_OPTION, _PROPAGATE and _EXTRA_OPTIONS with the site's rules; the "
        "test runs as the account of the service"
    )
    return warning_finding("requests", f"{chosen}; Slurm accepts no test job: {message}", fix)


def _tested(partitions: Sequence[PartitionResource]) -> Iterator[PartitionResource]:
    """Yield the default partition, or the first one, and the first ones with and without GPUs."""
    ordered = sorted(partitions, key=lambda partition: not partition.default)
    yield from ordered[:1]
    for uses_gpus in (True, False):
        yield from [one for one in ordered if any(shape.gpus for shape in one.shapes) == uses_gpus][:1]


def interpreter(settings: Settings) -> Finding:
    """Whether the workers' interpreter exists and has the known security fixes, as far as this machine can see."""
    python = Path(settings.python)
    node_check = f"srun -N1 {python} -c 'import torch, worker'"
    # A virtual environment links to an interpreter of the nodes, so the link may be broken here.
    if os.path.lexists(python):
        version = _python_version(python)
        if version is not None and (missing := describe_missing(version)) is not None:
            fix = "install the newest patch release of this Python for the workers"
            return warning_finding("python", f"{python}: {missing}", fix)
        return ok_finding("python", f"{python} is here; whether on the nodes too: {node_check}")
    message = f"{python} is not here, and jobs end at once where a node does not have it"
    fix = f"set TRAINYARD_SLURM_PYTHON to the worker's interpreter; check on a node: {node_check}"
    shared = any(
        python.is_relative_to(root) for root in (*settings.site.roots, str(settings.runs.parent), str(Path.home()))
    )
    return error_finding("python", message, fix) if shared else warning_finding("python", message, fix)


def _python_version(python: Path) -> tuple[int, int, int] | None:
    """Return the version of an interpreter; None if it does not run here."""
    try:
        result = _run(str(python), "-I", "-S", "-c", "import sys; print(*sys.version_info[:3])")
        major, minor, patch = map(int, result.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return major, minor, patch


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
