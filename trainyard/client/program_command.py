"""Parses a command line to a program: a Python program, which our launcher starts on every rank, or any other command.

Our launcher replaces a launcher such as torchrun if it understands all of its options. Otherwise the command runs
unchanged. A command that would start other processes than are allocated is refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

import yaml

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_launchers import LAUNCHER_NAMES, read_launcher
from trainyard.client.program_notebooks import NBCONVERT, NOTEBOOK, executed_notebook, executes_notebook
from trainyard.client.program_python import PYTHON_NAME
from trainyard.client.program_refusals import refuse_other_start, refuse_shell_text, refuse_too_large
from trainyard.client.program_wrappers import program_position
from trainyard.contract.base import MAX_SHORT_TEXT
from trainyard.contract.spec.environment import option_instead

Per = Literal["rank", "node", "job"]


@dataclass(frozen=True)
class Program:
    """The program to run, without a launcher that is replaced."""

    argv: tuple[str, ...]
    """As the spec's `argv`."""
    ranks: int | None = None
    """All processes, if the command has their number."""
    nodes: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    is_command: bool = False
    """Whether it is any command, not a Python file or module."""
    per: Per = "rank"
    distributed: bool | None = None
    """Whether the processes get torchrun's variables. None: if more than one process starts."""
    counts_gpus: bool = False
    """Whether the launcher would start as many processes as it finds GPUs, so that their number must be given."""


_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""The variables that a spec can have; `env` sets others."""
_INTERPRETER_OPTIONS: dict[str, dict[str, str]] = {
    "-u": {},
    "-B": {"PYTHONDONTWRITEBYTECODE": "1"},
    "-O": {"PYTHONOPTIMIZE": "1"},
    "-OO": {"PYTHONOPTIMIZE": "2"},
}
"""Options of Python and the variables that have the same effect. The output of a rank is never buffered."""
_LAUNCHER_MODULES: dict[str, tuple[str, ...]] = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torch.distributed.launch",),
    "accelerate.commands.launch": ("accelerate", "launch"),
    "deepspeed.launcher.runner": ("deepspeed",),
}
_MPI = frozenset({"mpirun", "mpiexec", "horovodrun"})
_ON_THIS_NODE = (
    "OMPI_MCA_ras=^slurm",
    "PRTE_MCA_ras=^slurm",
    "OMPI_MCA_rmaps_base_oversubscribe=true",
    "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
)
"""Open MPI, releases 4 and 5, starts processes on all nodes of a Slurm job by srun, and counts its tasks as slots. A
command runs on a single node, and a job has one task per node."""
_COUNTS = ("nproc_per_node", "num_processes", "num_gpus")
_COUNTS_OF_MPI = ("np", "n")
_COUNT_OPTION = re.compile(r"--?(?P<name>[a-z][a-z_-]*)(?:=(?P<value>.*))?")
_EXAMPLE = "name a program after `--`, as in: trainyard run --gpus 2 -- python train.py"
_RANKED = 'program=$1; shift; exec {start} "$program" {option}="$LOCAL_RANK" "$@"'
_RANKED_FILES = [_RANKED.format(start="python", option=option) for option in ("--local_rank", "--local-rank")]


def parse_command(command: Sequence[str]) -> Program:
    """Return the program of a command such as `python train.py --lr 0.1`, `torchrun --nproc-per-node 4 train.py` or
    `bash run.sh`.

    Raises:
        InvalidRequestError: the command would start other processes than Trainyard allocates; the message names the
            alternative.
    """
    parts, variables = _without_assignments(list(command))
    if not parts or not parts[0]:
        raise InvalidRequestError(_EXAMPLE)
    refuse_too_large(command)
    refuse_shell_text(command)
    program = _resolve(parts)
    return with_variables(replace(program, variables={}), {**program.variables, **variables})


def with_variables(program: Program, variables: Mapping[str, str]) -> Program:
    """Return a program with more variables. `env` sets those that a spec cannot have.

    Raises:
        InvalidRequestError: the scheduler, the launcher or the service sets a variable; the message names the option.
    """
    _refuse_reserved(variables)
    own = {name: value for name, value in variables.items() if _fits_spec(name, value)}
    if other := [f"{name}={value}" for name, value in variables.items() if name not in own]:
        argv = program.argv if program.is_command else ("python", *program.argv)
        program = replace(program, argv=("env", *other, *argv), is_command=True)
    return replace(program, variables={**program.variables, **own})


def _refuse_reserved(names: Iterable[str]) -> None:
    for name in names:
        if reason := option_instead(name):
            raise InvalidRequestError(f"{name} {reason}")


def _fits_spec(name: str, value: str) -> bool:
    return bool(_VARIABLE.fullmatch(name)) and len(value) <= MAX_SHORT_TEXT and value.isprintable()


def _without_assignments(parts: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command without variables before it, as in `A=1 python` and `env A=1 python`, and the variables."""
    start = 1 if len(parts) > 1 and PurePosixPath(parts[0]).name == "env" else 0
    end = start
    while end < len(parts) and _ASSIGNMENT.fullmatch(parts[end]):
        end += 1
    if end == start or (end < len(parts) and parts[end].startswith("-")):
        return parts, {}
    return parts[end:], dict(word.split("=", 1) for word in parts[start:end])


def _wrapped(wrapper: Sequence[str], inner: list[str]) -> Program:
    """Return a program with its wrapper, which starts it. A launcher in between is replaced all the same."""
    if not inner:
        return Program(tuple(wrapper), is_command=True, per="job")
    wrapper, variables = _without_settings(wrapper)
    if PurePosixPath(inner[0]).name == "env":
        inner, more = _without_assignments(inner)
        variables |= more
    # `uv run -m pkg.train`
    program = Program(tuple(inner)) if inner[0].startswith("-") else _resolve(inner)
    argv = program.argv
    if program.is_command or program.distributed:
        variables = {**program.variables, **variables}
    if not program.is_command:
        # The options of Python stay in the command.
        argv = ("python", *argv) if program.distributed else tuple(inner)
    return replace(program, argv=(*wrapper, *argv), is_command=True, variables=variables)


def _without_settings(wrapper: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return a wrapper without the variables that it sets, and the variables, if it is an `env` with other options."""
    parts = [*wrapper]
    if PurePosixPath(parts[0]).name != "env":
        return parts, {}
    settings = [part for part in parts[1:] if _ASSIGNMENT.fullmatch(part)]
    if not {"-", "-i", "--ignore-environment", "-S"}.isdisjoint(parts):
        # The order counts. Those after `-i` are set when the program starts.
        _refuse_reserved(part.split("=", 1)[0] for part in settings)
        return parts, {}
    return [part for part in parts if part not in settings], dict(part.split("=", 1) for part in settings)


def _resolve(parts: list[str]) -> Program:
    if position := program_position(parts):
        return _wrapped(parts[:position], parts[position:])
    if executes_notebook(parts):
        return Program(("python", "-c", NBCONVERT, *parts), is_command=True, per="job")
    name = PurePosixPath(parts[0]).name
    if PYTHON_NAME.fullmatch(name):
        return _python_program(parts)
    if name in LAUNCHER_NAMES:
        return _launched(parts)
    if parts[0].endswith(".py"):
        return Program(_program(parts[0], parts[1:]))
    if parts[0].endswith(".ipynb"):
        return Program(("python", "-c", NOTEBOOK, *parts), is_command=True, per="job")
    refuse_other_start(parts)
    start = ("env", *_ON_THIS_NODE) if name in _MPI else ()
    return Program((*start, *parts), _count(name, parts[1:]), is_command=True, per="job")


def _count(name: str, arguments: Sequence[str]) -> int | None:
    """Return the number of processes that a command starts by itself, if an option states it."""
    for position, word in enumerate(arguments):
        match = _COUNT_OPTION.fullmatch(word)
        known = _COUNTS_OF_MPI if name in _MPI else _COUNTS
        if match and match["name"].replace("-", "_") in known:
            value = match["value"] or next(iter(arguments[position + 1 : position + 2]), "")
            return int(value) if re.fullmatch(r"[1-9]\d{0,5}", value) else None
    return None


def _python_program(parts: list[str]) -> Program:
    if launcher := _launcher_of_module(parts):
        return _launched([*launcher, *parts[3:]])
    rest = parts[1:]
    variables = _interpreter_variables(rest)
    if rest[:1] == ["-m"] and len(rest) > 1:
        return Program(tuple(rest), variables=variables)
    if not rest or rest in (["-"], ["-m"], ["-c"]):
        message = "python: it has no program; use `python FILE ...`, `python -m MODULE ...` or `python -c TEXT`"
        raise InvalidRequestError(message)
    if rest[0].startswith("-"):
        return Program(("python", *parts[1:]), is_command=True)
    return Program(_program(rest[0], rest[1:]), variables=variables)


def _launcher_of_module(parts: Sequence[str]) -> tuple[str, ...] | None:
    """Return the launcher that `python -m` starts."""
    return _LAUNCHER_MODULES.get(parts[2]) if len(parts) > 2 and parts[1] == "-m" else None


def _interpreter_variables(parts: list[str]) -> dict[str, str]:
    """Remove the options of the interpreter that have a variable, and return the variables."""
    variables: dict[str, str] = {}
    warnings: list[str] = []
    while parts and (parts[0] in _INTERPRETER_OPTIONS or parts[0].startswith("-W")):
        option = parts.pop(0)
        if option == "-W" and parts:
            warnings.append(parts.pop(0))
        elif option.startswith("-W") and len(option) > 2:
            warnings.append(option[2:])
        else:
            variables |= _INTERPRETER_OPTIONS.get(option, {})
    return variables | ({"PYTHONWARNINGS": ",".join(warnings)} if warnings else {})


def _program(path: str, arguments: Sequence[str]) -> tuple[str, ...]:
    return (PurePosixPath(path).as_posix(), *arguments)


def _launched(parts: list[str]) -> Program:
    """Return the program of a launcher, which ours replaces; or the launcher as a command, where it must run itself."""
    launched = read_launcher(parts)
    if launched is None:
        is_launcher = PurePosixPath(parts[0]).name != "accelerate" or parts[1:2] == ["launch"]
        count = _count(parts[0], parts[1:])
        return Program(tuple(parts), count, is_command=True, per="job", counts_gpus=is_launcher and count is None)
    first, *rest = launched.program
    if launched.kind == "command":
        argv = tuple(launched.program)
    elif launched.kind in ("ranked_file", "ranked_module"):
        option = "--local_rank" if PurePosixPath(parts[0]).name == "deepspeed" else "--local-rank"
        start = "python -m" if launched.kind == "ranked_module" else "python"
        argv = ("sh", "-c", _RANKED.format(start=start, option=option), "sh", first, *rest)
    else:
        argv = ("-m", first, *rest) if launched.kind == "module" else _program(first, rest)
    return Program(
        argv,
        launched.ranks,
        launched.nodes,
        launched.variables,
        is_command=argv[0] == "sh" or launched.kind == "command",
        distributed=True,
        counts_gpus=launched.counts_gpus,
    )


def started_file(argv: Sequence[str]) -> str | None:
    """Return the file that a text of ours starts; None for another command and for a module."""
    if NOTEBOOK in argv[2:3]:
        return argv[3]
    if NBCONVERT in argv[2:3]:
        return executed_notebook(argv[3:])
    return argv[4] if argv[0] == "sh" and argv[2:3] and argv[2] in _RANKED_FILES else None


def with_config(program: Program, folder: Path) -> Program:
    """Return a program with the number of processes of the file that `accelerate launch --config_file` names.

    Raises:
        InvalidRequestError: the file is for several machines.
    """
    if not program.counts_gpus or "--config_file" not in program.argv:
        return program
    file = folder / (*program.argv, "")[program.argv.index("--config_file") + 1]
    try:
        settings = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return program  # a file of the nodes; --gpus is required
    settings = settings if isinstance(settings, dict) else {}
    if settings.get("num_machines", 1) != 1:
        message = f"accelerate launch: {file.name} is for several machines; pass its settings as options"
        raise InvalidRequestError(message, param="command")
    count = settings.get("num_processes")
    return replace(program, ranks=count) if isinstance(count, int) and count > 0 else program
