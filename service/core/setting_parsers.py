"""Parsers of settings that have a grammar of their own. Pure functions."""

import re
import shlex
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from trainyard.contract.spec.environment import is_set_for_ranks
from trainyard.contract.spec.sbatch_options import DEFAULT_OPTIONS, SBATCH_OPTIONS

_SBATCH_OPTIONS = frozenset(
    {
        *("reservation", "licenses", "switches", "exclusive", "contiguous", "tmp", "nice", "prefer", "network"),
        *("gres-flags", "hint", "core-spec", "thread-spec", "threads-per-core", "cpu-freq", "gpu-freq", "gpu-bind"),
        *("comment", "wckey", "mcs-label", "acctg-freq", "profile", "bb", "container", "deadline", "begin"),
        *("mail-type", "mail-user", "oversubscribe", "spread-job", "use-min-nodes", "reboot"),
    }
)
"""sbatch options that an administrator may set: neither the service nor a spec sets them."""
_SRUN_OPTIONS = frozenset(
    {
        *("mpi", "cpu-bind", "mem-bind", "gpu-bind", "gres-flags", "distribution", "hint", "network", "mem", "exact"),
        *("overlap", "whole", "threads-per-core", "core-spec", "thread-spec", "cpu-freq", "gpu-freq", "acctg-freq"),
        *("profile", "resv-ports", "disable-status", "task-prolog", "task-epilog"),
    }
)
"""srun options that an administrator may set: they change neither the program, nor its nodes, nor how it ends."""
_OPTION_VALUE = re.compile(r"[A-Za-z0-9_.:,=@/%+*-]{1,128}")


def parse_gpu_memory(text: str) -> dict[str, float]:
    """Parse the memory of GPU types, such as `gtx1080=8,mygpu=48,=24`.

    Returns:
        GiB by GPU type. The empty name stands for GPUs without a type.

    Raises:
        ValueError: a part is not `<type>=<GiB>`.
    """
    sizes: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = part.rpartition("=")
        if not equals or not re.fullmatch(r"\d{1,4}(\.\d+)?", size.strip()) or float(size) <= 0:
            raise ValueError(f"`{part}` is not <type>=<GiB>, such as a100=80; use =24 for GPUs without a type")
        sizes[name.strip().lower()] = float(size)
    return sizes


def parse_sbatch_options(text: str) -> dict[str, str | bool]:
    """Parse an administrator's sbatch options: `--reservation=ai --exclusive`.

    Returns:
        Values by option name, without dashes; True for an option without a value.

    Raises:
        ValueError: an option is not in the allow-list, or its value has characters that are unsafe in a batch script.
    """
    return _parse_options(text, _SBATCH_OPTIONS)


def parse_srun_options(text: str) -> dict[str, str | bool]:
    """Parse an administrator's srun options, such as `--mpi=none`, as `parse_sbatch_options` does.

    Raises:
        ValueError: as there.
    """
    return _parse_options(text, _SRUN_OPTIONS)


def _parse_options(text: str, allowed: Collection[str]) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {}
    for word in shlex.split(text):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in allowed:
            names = ", ".join(f"--{option}" for option in sorted(allowed))
            raise ValueError(f"`{word}` is not an allowed option; use any of: {names}")
        if equals and not _OPTION_VALUE.fullmatch(value):
            raise ValueError(f"`--{name}`: the value may contain only letters, digits and _.:,=@/%+*-")
        options[name] = value if equals else True
    return options


def parse_option_names(parts: Iterable[str]) -> frozenset[str]:
    """Parse the names of the sbatch options that specs may set, such as `default`, `mail-type`, `-nodelist`.

    `default` stands for the default names; a name after a dash is removed from the names before it.

    Raises:
        ValueError: a name is not among the options whose values can be checked.
    """
    names: set[str] = set()
    for part in parts:
        name = part.removeprefix("-")
        if part != "default" and name not in SBATCH_OPTIONS:
            near = get_close_matches(name, SBATCH_OPTIONS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are: default, {', '.join(sorted(SBATCH_OPTIONS))}"
            raise ValueError(f"`{part}` is not an option that a spec can have; {hint}")
        if part == "default":
            names.update(DEFAULT_OPTIONS)
        elif part.startswith("-"):
            names.discard(name)
        else:
            names.add(name)
    return frozenset(names)


def require_inheritable(names: Iterable[str]) -> None:
    """Check the names and prefixes of variables that jobs may inherit from the service.

    Raises:
        ValueError: a text is neither, or each job has a value of its own for it.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|[A-Za-z][A-Za-z0-9]*_\*", name):
            raise ValueError(f"`{name}` is neither a name nor a prefix such as NCCL_*")
        if is_set_for_ranks(name):
            raise ValueError(f"`{name}` cannot be inherited: the service, Slurm or torchrun sets it for each job")
