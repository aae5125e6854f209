"""The sbatch options that a spec may set by name in `resources.options`, and the check of each value. Pure functions.

sbatch parses the lines of a batch script by rules of its own and accepts some malformed values without an error, so
every option has a pattern that its whole value must match.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints

from trainyard.contract.problems import Problem

OPTIONS = "resources.options"
MAX_VALUE = 256
"""Characters of a value."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_RANGES = r"\[[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*\]"
_NODES = rf"[A-Za-z0-9][A-Za-z0-9_.-]*({_RANGES}[A-Za-z0-9_.-]*)*"
_LICENSE = rf"{_NAME}(@{_NAME})?(:[0-9]{{1,9}})?"
_GRES = r"(?!(?i:gpu|mps|shard|gres|none)(?![A-Za-z0-9_-]))[A-Za-z][A-Za-z0-9_-]*(:[A-Za-z0-9_.-]+){0,2}"
_TIME = r"[0-9]{1,6}(-[0-9]{1,2})?(:[0-9]{1,2}){0,2}"


@dataclass(frozen=True)
class SbatchOption:
    """Description of the valid values of an option."""

    value: str | None
    """Pattern of the whole value. None: the option has no value; it is `true`."""
    expected: str
    """The rest of a sentence that begins with `must be`."""
    is_default: bool = True
    """Whether specs may set it unless the administrator decides otherwise."""
    is_flag: bool = False
    """Whether the option may be `true`, without a value."""


def _listed(item: str) -> str:
    return f"{item}(,{item})*"


def _flag() -> SbatchOption:
    return SbatchOption(None, "`true`", is_flag=True)


SBATCH_OPTIONS: Mapping[str, SbatchOption] = {
    "comment": SbatchOption(
        r"[ !#%&()*+,./0-9:;<=>?@A-Z\[\]^_a-z{|}~-]+", "printable ASCII without quotes, backslash, backtick and `$`"
    ),
    "contiguous": _flag(),
    "exclusive": SbatchOption("user|mcs|topo", "`true`, `user`, `mcs` or `topo`", is_flag=True),
    "gres": SbatchOption(
        _listed(_GRES), "generic resources such as `nvme:1`; request GPUs by `gpus` and `resources.gpu_type`"
    ),
    "gres-flags": SbatchOption("disable-binding|enforce-binding", "`disable-binding` or `enforce-binding`"),
    "hint": SbatchOption(
        "compute_bound|memory_bound|multithread|nomultithread",
        "`compute_bound`, `memory_bound`, `multithread` or `nomultithread`",
    ),
    "licenses": SbatchOption(rf"{_LICENSE}([,|]{_LICENSE})*", "licenses, such as `matlab:2,ansys@server`"),
    # A negative value raises the priority, which Slurm permits to its own account and to root.
    "nice": SbatchOption("[0-9]{1,9}", "a whole number from 0 to 999999999"),
    # sbatch reads a value with a slash as the name of a file.
    "nodelist": SbatchOption(_listed(_NODES), "a Slurm node list, such as `node[01-04],gpu7`"),
    "prefer": SbatchOption(r"[A-Za-z0-9_.:,=\[\]&*|-]+", "features of nodes, such as `ib&a100`"),
    "reservation": SbatchOption(_listed(_NAME), "names of reservations, separated by commas"),
    "spread-job": _flag(),
    "switches": SbatchOption(rf"[0-9]{{1,4}}(@{_TIME})?", "a number of switches and a longest wait, such as `1@60:00`"),
    "threads-per-core": SbatchOption("[1-9][0-9]{0,2}", "a whole number from 1 to 999"),
    "tmp": SbatchOption("[0-9]{1,9}[KMGT]?", "a size of local disk, such as `100G`"),
    "use-min-nodes": _flag(),
    "wckey": SbatchOption(_NAME, "the name of a workload characterization key"),
    "acctg-freq": SbatchOption(r"[a-z0-9=,]+", "sampling intervals, such as `task=30`", is_default=False),
    "cpu-freq": SbatchOption(
        "[A-Za-z0-9]+(-[A-Za-z0-9]+)?(:[A-Za-z]+)?", "CPU frequencies, such as `low-high:performance`", is_default=False
    ),
    "gpu-freq": SbatchOption("[a-z0-9=,]+", "GPU frequencies, such as `medium,memory=high`", is_default=False),
    "mail-type": SbatchOption(_listed("[A-Z_0-9]+"), "types of events, such as `END,FAIL`", is_default=False),
    "mail-user": SbatchOption(
        r"[A-Za-z0-9][A-Za-z0-9_.+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?", "a user or a mail address", is_default=False
    ),
    "mcs-label": SbatchOption(_NAME, "the name of a label", is_default=False),
    "network": SbatchOption("[A-Za-z0-9_=,]+", "network requirements, such as `instances=2`", is_default=False),
    "profile": SbatchOption(_listed("[A-Za-z]+"), "kinds of samples, such as `Task,Energy`", is_default=False),
}
"""Every option that this release can check."""

DEFAULT_OPTIONS = tuple(sorted(name for name, option in SBATCH_OPTIONS.items() if option.is_default))
"""The options that specs may set unless the administrator decides otherwise."""

_FIELDS = {
    "`resources.partition`": ("partition",),
    "`resources.account`": ("account",),
    "`resources.qos`": ("qos",),
    "`resources.constraint`": ("constraint",),
    "`resources.exclude`": ("exclude",),
    "`resources.time_limit_minutes`": ("time", "time-min", "deadline"),
    "`resources.memory_gb_per_gpu`": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "`resources.cpus_per_gpu`": ("cpus-per-task", "cpus-per-gpu", "mincpus"),
    "`gpus`, `resources.gpus_per_node` and `resources.gpu_type`": (
        *("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gpu-bind", "nodes"),
        *("ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket"),
    ),
    "`environment.variables`": ("export", "export-file"),
    "`after`": ("dependency",),
    "a sweep": ("array",),
}
"""Options that the service sets from other fields, by the field to use instead."""
_SERVICE = {
    "is the tag by which the service finds the job; set `name`, which is for display": ("job-name",),
    "is set by the service, which submits each next attempt itself": ("requeue", "no-requeue"),
    "is set by the service, which saves a checkpoint before the time limit (TRAINYARD_SLURM_SIGNAL_LEAD_SECONDS)": (
        "signal",
    ),
    "is set by the service, which reads the job's files by their paths": (
        *("output", "error", "input", "open-mode", "chdir"),
    ),
    "would change whose job it is, what it runs or when the service sees it end": (
        *("uid", "gid", "wrap", "get-user-env", "propagate", "clusters", "hold", "wait", "no-kill"),
        *("priority", "reboot", "oversubscribe", "overcommit", "test-only", "parsable", "nodefile", "container"),
    ),
}
"""Why no spec may set an option."""
_RESERVED: Mapping[str, str] = {
    **{name: f"is set from other fields; use {field}" for field, names in _FIELDS.items() for name in names},
    **{name: reason for reason, names in _SERVICE.items() for name in names},
}
_MUTUALLY_EXCLUSIVE = {"exclusive": "oversubscribe"}
"""Options of a spec, and the option of the administrator that sets the same property of a job. sbatch obeys the last
option."""


def parse_option_value(value: Any) -> Any:
    """Return the value of an option as text, or `True` for an option without a value.

    Raises:
        ValueError: it is neither, or longer than `MAX_VALUE`.
    """
    if value is True:
        return True
    if value is False or value is None:
        raise ValueError("must be a value, or `true` for an option that has none; remove the option to not set it")
    if not isinstance(value, str | int):
        raise ValueError("must be text, a whole number, or `true`; write it in quotes")
    text = str(value)
    if len(text) > MAX_VALUE:
        raise ValueError(f"must have at most {MAX_VALUE} characters")
    return text


def option_problems(options: Mapping[str, str | bool]) -> list[Problem]:
    """Return a problem for each option that no spec may set, and for each invalid value."""
    problems = ((name, _name_problem(name) or _value_problem(name, value)) for name, value in options.items())
    return [Problem(param=f"{OPTIONS}.{name}", message=message) for name, message in problems if message]


def disallowed_options(
    options: Mapping[str, str | bool], allowed: Collection[str], fixed: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the path and the problem of each option that the administrator does not allow, or sets for every job."""
    for name in options:
        if name not in allowed:
            names = f"allowed are: {', '.join(sorted(allowed))}" if allowed else "none is allowed"
            yield f"{OPTIONS}.{name}", f"is not allowed by this service (TRAINYARD_SLURM_ALLOWED_OPTIONS); {names}"
        elif (winner := overriding_option(name, fixed)) is not None:
            message = f"cannot be set: this service sets `{winner}` for every job (TRAINYARD_SLURM_EXTRA_OPTIONS)"
            yield f"{OPTIONS}.{name}", message


def overriding_option(name: str, fixed: Collection[str]) -> str | None:
    """Return the administrator's option that overrides an option of a spec; None if none does."""
    return next((one for one in (name, _MUTUALLY_EXCLUSIVE.get(name)) if one in fixed), None)


def _name_problem(name: str) -> str | None:
    if name in SBATCH_OPTIONS:
        return None
    long_name = name.lstrip("-").replace("_", "-").lower()
    if long_name in SBATCH_OPTIONS:
        return f"write it as `{long_name}`"
    if long_name in _RESERVED:
        return _RESERVED[long_name]
    near = get_close_matches(long_name, SBATCH_OPTIONS, n=1)
    return f"unknown option; did you mean `{near[0]}`?" if near else f"unknown option; there are: {_ALL}"


def _value_problem(name: str, value: str | bool) -> str | None:
    option = SBATCH_OPTIONS[name]
    if value is True and option.is_flag:
        return None
    if isinstance(value, str) and option.value is not None and len(value) <= MAX_VALUE:
        return None if re.fullmatch(option.value, value) else f"must be {option.expected}"
    return f"must be {option.expected}"


_ALL = ", ".join(sorted(SBATCH_OPTIONS))

OptionName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
OptionValue = Annotated[
    Annotated[str, StringConstraints(max_length=MAX_VALUE)] | bool, BeforeValidator(parse_option_value)
]
"""Text, or `True` for an option without a value."""
