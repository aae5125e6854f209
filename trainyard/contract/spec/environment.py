"""Environment variables of a job: the one that identifies its attempt, and those that a spec may not set."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec

ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""Set in every process of an attempt, to the attempt's random id; no other process has this value."""

_RESERVED: Mapping[str, Sequence[str]] = {
    "reserved for the service": ("TRAINYARD_*", "PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV"),
    "reserved for the scheduler": ("SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SUBMITIT_*", "*_VISIBLE_DEVICES"),
    "set by torchrun for each rank": (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_*", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*"),
    ),
    "changes which code runs": (
        *("LD_*", "DYLD_*", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPLATLIBDIR"),
        *("PYTHONEXECUTABLE", "PYTHONINSPECT", "PYTHONBREAKPOINT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS"),
    ),
}
"""Variables that a spec may not set, by the reason."""


def forbidden_variables(spec: TrainingSpec) -> list[Problem]:
    """A problem for each variable of the spec that could affect more than the program that reads it."""
    return [
        Problem(param=f"environment.variables.{name}", message=f"{reason}; a spec may not set this variable")
        for name in spec.environment.variables
        for reason, patterns in _RESERVED.items()
        if matches_any(name, patterns)
    ]


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether the name matches a shell-style pattern, case-sensitively."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
