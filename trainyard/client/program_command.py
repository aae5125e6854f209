"""Translates the command line of a program and its launcher to the program that Trainyard's own launcher runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_python import PYTHON_NAME

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_RETRIES = "use --retries of `trainyard run`"


@dataclass(frozen=True)
class Program:
    """What to run, without a launcher."""

    argv: tuple[str, ...]
    """The program and its arguments, as the spec's `argv`."""
    ranks: int | None = None
    """All ranks, if the launcher's options have their number."""
    nodes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Command:
    """The arguments of a launcher that are not read yet."""

    launcher: str
    rest: list[str]
    values: dict[str, str] = field(default_factory=dict)
    """The options of the launcher that have an effect, by their name."""
    module: bool = False


_IGNORED_BY_TORCHRUN = (
    *("standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port"),
    *("node-rank", "local-addr", "monitor-interval", "start-method"),
)
_FLAGS = frozenset({"standalone", "multi-gpu", "cpu", "module"})
_OPTIONS: dict[str, dict[str, str]] = {
    "torchrun": {"nproc-per-node": "ranks_per_node", "nnodes": "nodes", "module": "module"}
    | dict.fromkeys(_IGNORED_BY_TORCHRUN, ""),
    "accelerate launch": {
        "num-processes": "ranks",
        "num-machines": "nodes",
        "mixed-precision": "mixed_precision",
        "module": "module",
        "multi-gpu": "",
        "cpu": "cpu",
        "machine-rank": "",
        "main-process-ip": "",
        "main-process-port": "",
    },
    "deepspeed": {"num-gpus": "ranks_per_node", "num-nodes": "nodes", "module": "module", "master-port": ""},
}
"""The options of each launcher that are understood: what they set, or nothing where our launcher sets it."""
_INTERPRETER_OPTIONS: dict[str, dict[str, str]] = {
    "-u": {},
    "-B": {"PYTHONDONTWRITEBYTECODE": "1"},
    "-O": {"PYTHONOPTIMIZE": "1"},
    "-OO": {"PYTHONOPTIMIZE": "2"},
}
"""Options of Python and the variables that have the same effect. The output of a rank is never buffered."""
_ADVICE = {
    "max-restarts": _RETRIES,
    "hostfile": "Slurm chooses the nodes; use --nodes of `trainyard run`",
    "include": "Slurm chooses the nodes; use --nodes of `trainyard run`",
    "config-file": "pass its settings as options, or set ACCELERATE_* variables with --env",
    "use-fsdp": "set ACCELERATE_USE_FSDP=true and the FSDP_* variables with --env",
    "use-deepspeed": "set ACCELERATE_USE_DEEPSPEED=true with --env",
    "no-python": "the program must be one of Python",
}


def parse_command(command: Sequence[str]) -> Program:
    """Return the program of a command such as `python train.py --lr 0.1` or `torchrun --nproc-per-node 4 train.py`.

    Raises:
        InvalidRequestError: the command is none that Trainyard's launcher can run; the message says why.
    """
    if not command:
        raise InvalidRequestError("name a program after `--`, as in: trainyard run --gpus 2 -- python train.py")
    first, rest = PurePosixPath(command[0]).name, list(command[1:])
    if PYTHON_NAME.fullmatch(first):
        return _python_program(rest)
    if first == "accelerate" and rest[:1] == ["launch"]:
        return _launched(_Command("accelerate launch", rest[1:]))
    if first in ("torchrun", "deepspeed"):
        return _launched(_Command(first, rest))
    if command[0].endswith(".py"):
        return Program(_program(command[0], rest))
    if _ASSIGNMENT.match(command[0]):
        raise InvalidRequestError(f"{command[0]!r} is a variable of a shell; use --env {command[0]} before the program")
    raise InvalidRequestError(
        f"{command[0]!r} cannot be started on every rank: the program must be a Python file or module, started with "
        "`python`, `torchrun`, `accelerate launch` or `deepspeed`; what a shell script prepares goes to "
        "`environment.setup` of a spec"
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


def _python_program(command: list[str]) -> Program:
    variables = _interpreter_variables(command)
    if command[:2] == ["-m", "torch.distributed.run"]:
        message = "start the program with `torchrun` or `python`; Trainyard's launcher starts the ranks"
        raise InvalidRequestError(message)
    if command[:1] == ["-m"] and len(command) > 1:
        return Program(tuple(command), variables=variables)
    if not command or command[0].startswith("-"):
        option = f"its option {command[0]!r} is not supported" if command else "it has no program"
        raise InvalidRequestError(f"python: {option}; use `python FILE ...` or `python -m MODULE ...`")
    return Program(_program(command[0], command[1:]), variables=variables)


def _interpreter_variables(command: list[str]) -> dict[str, str]:
    """Remove the options of the interpreter that have a variable, and return the variables."""
    variables: dict[str, str] = {}
    warnings: list[str] = []
    while command and (command[0] in _INTERPRETER_OPTIONS or command[0].startswith("-W")):
        option = command.pop(0)
        if option == "-W" and command:
            warnings.append(command.pop(0))
        elif option.startswith("-W") and len(option) > 2:
            warnings.append(option[2:])
        else:
            variables |= _INTERPRETER_OPTIONS.get(option, {})
    return variables | ({"PYTHONWARNINGS": ",".join(warnings)} if warnings else {})


def _program(path: str, arguments: Sequence[str]) -> tuple[str, ...]:
    return (PurePosixPath(path).as_posix(), *arguments)


def _launched(command: _Command) -> Program:
    while command.rest and command.rest[0].startswith("-"):
        _read_option(command)
    if not command.rest:
        raise InvalidRequestError(f"{command.launcher}: it has no program")
    argv = ("-m", *command.rest) if command.module else _program(command.rest[0], command.rest[1:])
    nodes = _number(command, "nodes")
    per_node = _number(command, "ranks_per_node")
    ranks = _number(command, "ranks") if "ranks" in command.values else per_node and per_node * (nodes or 1)
    variables = {}
    if "mixed_precision" in command.values:
        variables["ACCELERATE_MIXED_PRECISION"] = command.values["mixed_precision"]
    if "cpu" in command.values:
        variables["ACCELERATE_USE_CPU"] = "true"
    return Program(argv, ranks, nodes, variables)


def _read_option(command: _Command) -> None:
    """Read one option of a launcher, with its value."""
    given = command.rest.pop(0)
    name, equals, value = given.lstrip("-").partition("=")
    name = {"m": "module"}.get(name, name).replace("_", "-")
    target = _OPTIONS[command.launcher].get(name)
    if target is None:
        advice = _ADVICE.get(name, "Trainyard's launcher has no such option")
        raise InvalidRequestError(f"{command.launcher}: {given.partition('=')[0]} is not supported: {advice}")
    if name in _FLAGS:
        value = "true"
    elif not equals:
        if not command.rest:
            raise InvalidRequestError(f"{command.launcher}: {given} has no value")
        value = command.rest.pop(0)
    if target == "module":
        command.module = True
    elif target:
        command.values[target] = value


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
