"""What can be wrong with Slurm as the service meets it: its commands, munge, and the interpreter on the nodes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from service.core.settings import Settings
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo")
_SECONDS = 10.0
_IDENTITY = re.compile(r"munge|authenticat|credential", re.IGNORECASE)


def commands(_settings: Settings) -> Finding:
    """Whether Slurm's client is installed."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        return error_finding(
            "slurm", f"not found: {', '.join(missing)}", "install Slurm's client commands, or mend PATH"
        )
    return ok_finding("slurm", _run("sbatch", "--version").stdout.strip())


def controller(_settings: Settings) -> Finding:
    """Whether slurmctld answers and believes us."""
    if shutil.which("sinfo") is None:
        return error_finding(
            "slurmctld", "cannot be asked without sinfo", "install Slurm's client commands, or mend PATH"
        )
    asked = _run("sinfo", "--noheader")
    return controller_finding(asked.returncode, asked.stderr)


def controller_finding(status: int, said: str) -> Finding:
    """What an exit status and the words of `sinfo` mean. Pure."""
    if status == 0:
        return ok_finding("slurmctld", "answers")
    told = (said.strip().splitlines() or ["no reason given"])[-1]
    if _IDENTITY.search(said):
        fix = (
            "start munged on this machine, with the cluster's key and a clock that agrees; in a container mount the "
            "folder of its socket (CLUSTER_MUNGE), and after a restart of munged restart the reconciler"
        )
        return error_finding("munge", f"Slurm does not know who asks: {told}", fix)
    return error_finding("slurmctld", f"sinfo fails: {told}", "is slurmctld up? is slurm.conf here?")


def interpreter(settings: Settings) -> Finding:
    """Whether what the nodes are to run is there, as far as it can be seen from here."""
    python = Path(settings.python)
    there = f"srun -N1 {python} -c 'import torch, worker'"
    # Where its link leads is the nodes' affair: an environment is made from an interpreter of theirs.
    if os.path.lexists(python):
        return ok_finding("python", f"{python} is here; whether on the nodes too: {there}")
    told = f"{python} is not here, and jobs end at once where a node does not have it"
    fix = f"set TRAINYARD_SLURM_PYTHON to the worker's interpreter; a node tells: {there}"
    shared = any(python.is_relative_to(root) for root in (*settings.site.roots, str(settings.runs.parent)))
    return error_finding("python", told, fix) if shared else warning_finding("python", told, fix)


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
