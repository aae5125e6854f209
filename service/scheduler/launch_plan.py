"""From an attempt's document to what is submitted: pure, so that people can read it before anything happens."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from service.scheduler.base import LaunchPlan
from trainyard.contract.problems import Problem
from trainyard.contract.spec.redaction import redact
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument

MARKER = "TRAINYARD_ATTEMPT"
"""The variable that every process of an attempt carries, and no other process: its value is a random id."""

_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV", "TMPDIR"),
    *("LANG", "LC_*", "TZ"),
    *("CUDA_*", "NCCL_*", "GLOO_*"),
)
"""What a job takes over from the service's own environment."""

_RESERVED: Mapping[str, Sequence[str]] = {
    "belongs to the service": ("TRAINYARD_*", "PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV"),
    "belongs to the scheduler": ("SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SUBMITIT_*", "*_VISIBLE_DEVICES"),
    "is set by torchrun for each rank": (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_*", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*"),
    ),
    "changes which code is run": (
        *("LD_*", "DYLD_*", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPLATLIBDIR"),
        *("PYTHONEXECUTABLE", "PYTHONINSPECT", "PYTHONBREAKPOINT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS"),
    ),
}
"""Names that a spec may not set, by the reason why."""


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the service's environment that jobs may see; its secrets and settings stay behind."""
    return {name: value for name, value in environ.items() if _matches(name, _INHERITED)}


def forbidden_variables(spec: TrainingSpec) -> list[Problem]:
    """The spec's own variables that would change more than the program that reads them."""
    found = []
    for name in spec.environment.variables:
        for reason, patterns in _RESERVED.items():
            if _matches(name, patterns):
                message = f"{reason}; a spec may not set it"
                found.append(Problem(param=f"environment.variables.{name}", message=message))
    return found


def plan_launch(
    document: LaunchDocument,
    *,
    folder: Path,
    python: str = sys.executable,
    allowed_environment: Mapping[str, str],
    search_path: Sequence[Path] = (),
) -> LaunchPlan:
    """What is submitted for one attempt.

    Args:
        folder: The attempt's folder, which holds the document as `launch.json`.
        python: The interpreter on the nodes.
        allowed_environment: What `allowed` makes of the service's environment.
        search_path: Where the job's Python finds our packages when they are not installed (a source tree).

    Raises:
        ValueError: the spec sets variables that acceptance must have refused.
    """
    problems = forbidden_variables(document.spec)
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    environment = {**allowed_environment, **document.spec.environment.variables, MARKER: document.attempt_id}
    if search_path:
        environment["PYTHONPATH"] = ":".join(map(str, search_path))
    return LaunchPlan(
        tag=document.tag,
        folder=folder,
        ranks=document.nodes * document.ranks_per_node,
        nodes=document.nodes,
        environment=environment,
        script=_script(document, folder, python, environment),
        time_limit_minutes=document.time_limit_minutes,
        python=python,
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _script(document: LaunchDocument, folder: Path, python: str, environment: Mapping[str, str]) -> str:
    """The launch in shell words. A user's text is only ever a quoted value here, and nothing runs this text."""
    ranks = document.nodes * document.ranks_per_node
    shown = redact(environment)
    words = [f"{name}={shlex.quote(shown[name])}" for name in sorted(shown)]
    words.append(f"{shlex.quote(python)} -m worker.launcher {shlex.quote(str(folder))}")
    return "\n".join(
        [
            "#!/bin/sh",
            f"# {document.tag}: attempt {document.attempt} of job {document.job_id}, {ranks} rank(s)",
            f"cd {shlex.quote(str(folder))}",
            "exec env -i " + " \\\n    ".join(words),
            "",
        ]
    )
