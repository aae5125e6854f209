"""The options of the launchers that ours replaces: torchrun, `accelerate launch` and `deepspeed`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from trainyard.client.errors import InvalidRequestError

_LAUNCH_MODULE = "torch.distributed.launch"
LAUNCHER_NAMES = frozenset({"torchrun", "accelerate", "deepspeed", _LAUNCH_MODULE})
Kind = Literal["file", "module", "command", "ranked_file", "ranked_module"]
"""Kind of the program of a launcher. A ranked program gets the number of its rank on the node as its first argument."""

_RETRIES = "use --retries of `trainyard run`"
_NODES = "Slurm chooses the nodes; use --nodes of `trainyard run`"
_ADVICE = {
    "max-restarts": _RETRIES,
    **dict.fromkeys(("hostfile", "include", "exclude", "launcher", "force-multi"), _NODES),
}
_SET_BY_OURS = (
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port", "node-rank", "local-addr"),
    *("monitor-interval", "start-method", "role", "log-dir", "redirects", "tee", "local-ranks-filter"),
)
_TORCHRUN = {
    "nproc-per-node": "ranks_per_node",
    "nnodes": "nodes",
    "module": "module",
    "no-python": "command",
    **dict.fromkeys((*_SET_BY_OURS, "standalone", "use-env"), ""),
}
_OPTIONS: dict[str, dict[str, str]] = {
    "torchrun": _TORCHRUN,
    _LAUNCH_MODULE: _TORCHRUN | {"use-env": "use_env"},
    "accelerate launch": {
        "num-processes": "ranks",
        "num-machines": "nodes",
        "mixed-precision": "mixed_precision",
        "module": "module",
        "cpu": "cpu",
        "no-python": "command",
        **dict.fromkeys(("multi-gpu", "machine-rank", "main-process-ip", "main-process-port"), ""),
    },
    "deepspeed": {
        "num-gpus": "ranks_per_node",
        "num-nodes": "nodes",
        "module": "module",
        "no-python": "command",
        "no-local-rank": "use_env",
        "master-port": "",
        "master-addr": "",
    },
}
"""The known options of each launcher, with the value that they set; empty if our launcher sets it."""
_FLAGS = frozenset({"standalone", "multi-gpu", "cpu", "module", "no-python", "use-env", "no-local-rank"})
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_RUN_AS_THEY_ARE = frozenset({"accelerate launch", "deepspeed"})
"""Launchers that start the processes of a node by themselves, and run unchanged with an unknown option."""


@dataclass(frozen=True)
class Launched:
    """The program of a launcher that ours replaces."""

    program: Sequence[str]
    kind: Kind = "file"
    ranks: int | None = None
    """All ranks, if the options have their number."""
    nodes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    counts_gpus: bool = False
    """Whether the launcher would start as many processes as it finds GPUs."""


@dataclass
class _Command:
    """The arguments of a launcher that are not read yet."""

    launcher: str
    rest: list[str]
    values: dict[str, str] = field(default_factory=dict)
    """The values of options that have an effect, by the name of the set value."""


def read_launcher(parts: Sequence[str]) -> Launched | None:
    """Return the program of a launcher; None: the command must run unchanged.

    Raises:
        InvalidRequestError: an option contradicts how jobs run here; the message names the alternative.
    """
    name, rest = PurePosixPath(parts[0]).name, list(parts[1:])
    if name == "accelerate":
        if rest[:1] != ["launch"]:
            return None
        name, rest = "accelerate launch", rest[1:]
    command = _Command(name, rest)
    while command.rest and command.rest[0].startswith("-"):
        if not _read_option(command):
            return None
    if not command.rest:
        raise InvalidRequestError(f"{name}: it has no program")
    nodes, per_node = _number(command, "nodes"), _number(command, "ranks_per_node")
    ranks = _number(command, "ranks") if "ranks" in command.values else per_node and per_node * (nodes or 1)
    return Launched(
        command.rest,
        _kind(command),
        ranks,
        nodes,
        _variables(command),
        counts_gpus=command.values.get("ranks_per_node") in ("gpu", "auto"),
    )


def unread_config_note(command: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Return a note that `accelerate launch` would read settings here which the job does not have; None if not."""
    if len(command) < 2 or (PurePosixPath(command[0]).name, command[1]) != ("accelerate", "launch"):
        return None
    cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(variables.get("HF_HOME") or f"{cache}/huggingface").expanduser() / "accelerate"
    files = (folder / f"default_config.{ending}" for ending in ("json", "yaml", "yml"))
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        return None
    return f"{file} is not read: pass its settings as options, such as --mixed_precision bf16, or with --env"


def _kind(command: _Command) -> Kind:
    if "command" in command.values:
        return "command"
    is_module = "module" in command.values
    if command.launcher in (_LAUNCH_MODULE, "deepspeed") and "use_env" not in command.values:
        return "ranked_module" if is_module else "ranked_file"
    return "module" if is_module else "file"


def _variables(command: _Command) -> dict[str, str]:
    variables = {}
    if "mixed_precision" in command.values:
        variables["ACCELERATE_MIXED_PRECISION"] = command.values["mixed_precision"]
    if "cpu" in command.values:
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables


def _read_option(command: _Command) -> bool:
    """Read an option of a launcher, with its value; return whether it is understood."""
    given = command.rest.pop(0)
    name, equals, value = given.lstrip("-").partition("=")
    name = _SHORT.get(name, name).replace("_", "-")
    target = _OPTIONS[command.launcher].get(name)
    if target is None:
        if name not in _ADVICE and command.launcher in _RUN_AS_THEY_ARE:
            return False
        advice = _ADVICE.get(name, "Trainyard's launcher has no such option")
        raise InvalidRequestError(f"{command.launcher}: {given.partition('=')[0]} is not supported: {advice}")
    if name in _FLAGS:
        value = "true"
    elif not equals:
        if not command.rest:
            raise InvalidRequestError(f"{command.launcher}: {given} has no value")
        value = command.rest.pop(0)
    if target:
        command.values[target] = value
    return True


def _number(command: _Command, name: str) -> int | None:
    """Return a number of the options; None where the launcher would choose it, as `gpu` and `auto` do."""
    text = command.values.get(name, "")
    if text in ("", "gpu", "auto", "cpu", "-1"):
        return None
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise InvalidRequestError(
            f"{command.launcher}: {text!r} is not a fixed number; Trainyard starts a fixed number of ranks"
        )
    return int(text)
