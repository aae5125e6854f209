"""Checks of Slurm from the machine of the service: its commands, munge, and the interpreter on the nodes."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from service.core.python_version import describe_missing
from service.core.settings import Settings
from service.scheduler.base import Forecast, SchedulerUnavailableError
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.dialect import Dialect
from service.scheduler.slurm.sbatch_output import parse_forecast
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo")
_SECONDS = 10.0
_TEST_SECONDS = 20.0
"""After which no further partition is tested."""
_CLOSED = re.compile(r"permission denied|not permitted to use|account/partition combination", re.IGNORECASE)
"""Refusals of a partition that is not for the service's account, which is usual."""
_EACH_NODE = "`trainyard doctor --deep --each-node` tries each node"
_EXAMINATION = """\
import importlib.util, sys
print(*sys.version_info[:3], *(name for name in ("torch", "worker") if importlib.util.find_spec(name) is None))
"""
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
    """Whether Slurm, and the plug-ins of the site, accept a small job in each partition that is up."""
    dialect, slurm = Dialect.of(settings), SlurmCommands()
    chosen = f"memory by {dialect.memory}, GPUs by {dialect.gpus}, limits by {dialect.propagate or 'slurm.conf'}"
    forecasts, untested = dict[str, Forecast](), 0
    try:
        partitions = [partition for partition in slurm.sinfo().partitions if partition.state == "up"]
        deadline = time.monotonic() + _TEST_SECONDS
        for partition in sorted(partitions, key=lambda partition: not partition.default):
            if time.monotonic() > deadline:
                untested += 1
                continue
            uses_gpus = any(shape.gpus for shape in partition.shapes)
            script = dialect.test_script(partition.name, uses_gpus=uses_gpus)
            forecasts[partition.name] = parse_forecast(*slurm.test_only(script))
    except SchedulerUnavailableError as error:
        return warning_finding("requests", f"cannot be checked: {error}", "see the finding slurmctld")
    return requests_finding(chosen, forecasts, untested)


def requests_finding(chosen: str, forecasts: Mapping[str, Forecast], untested: int = 0) -> Finding:
    """The finding for the forecasts of test jobs by partition.

    Args:
        chosen: The request of the test jobs.
        untested: Partitions for which the time did not suffice.
    """
    refused = {name: one.message.removesuffix(".") for name, one in forecasts.items() if not one.accepted}
    closed = [name for name, text in refused.items() if _CLOSED.search(text)]
    accepted = [name for name, one in forecasts.items() if one.accepted]
    parts = [f"partition {name}: {text}" for name, text in refused.items() if not accepted or name not in closed]
    notes = f"; not open to this account: {', '.join(closed)}" if closed and accepted else ""
    notes += f"; {untested} partitions were not tested" if untested else ""
    if not parts:
        accepting = f"partition{'s' * (len(accepted) != 1)} {', '.join(accepted)}" if accepted else "no partition is up"
        return ok_finding("requests", f"{chosen}; accepted in {accepting}{notes}" if accepted else accepting)
    fix = (
        "compare TRAINYARD_SLURM_MEMORY_OPTION, _GPU_OPTION, _PROPAGATE and _EXTRA_OPTIONS with the site's rules; the "
        "test runs as the account of the service"
    )
    return warning_finding("requests", f"{chosen}; Slurm does not accept a test job: {'; '.join(parts)}{notes}", fix)


def interpreter(settings: Settings) -> Finding:
    """Whether the workers' interpreter has torch, the worker and the known security fixes, as this machine sees it."""
    python = Path(settings.python)
    node_check = f"srun -N1 {python} -c 'import torch, worker'"
    shared = any(
        python.is_relative_to(root) for root in (*settings.site.roots, str(settings.runs.parent), str(Path.home()))
    )
    # A virtual environment links to an interpreter of the nodes, so the link may be broken here.
    if os.path.lexists(python):
        version, absent = _examine(python)
        if absent:
            fix = (
                f"install them there (pip install 'trainyard[worker]'), or correct TRAINYARD_SLURM_PYTHON; {_EACH_NODE}"
            )
            message = f"{python} has no {' and no '.join(absent)}, as seen from here"
            # Elsewhere the nodes may have another file of this name, as containers do.
            return error_finding("python", message, fix) if shared else warning_finding("python", message, fix)
        if version is not None and (missing := describe_missing(version)) is not None:
            fix = "install the newest patch release of this Python for the workers"
            return warning_finding("python", f"{python}: {missing}", fix)
        return ok_finding("python", f"{python} is here; whether on the nodes too: {node_check}")
    message = f"{python} is not here, and jobs end at once where a node does not have it"
    fix = f"set TRAINYARD_SLURM_PYTHON to the worker's interpreter; check on a node: {node_check}"
    return error_finding("python", message, fix) if shared else warning_finding("python", message, fix)


def _examine(python: Path) -> tuple[tuple[int, int, int] | None, list[str]]:
    """Return the version of an interpreter, None if it does not run here, and which of the modules it lacks."""
    try:
        result = _run(str(python), "-I", "-c", _EXAMINATION)
        major, minor, patch, *absent = result.stdout.split()
        return (int(major), int(minor), int(patch)), absent
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None, []


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
