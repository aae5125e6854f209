"""The spec of a program that runs unchanged, made by `trainyard run` and `trainyard.run` from a command and options."""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from trainyard.client.code_folder import CodeFolder
from trainyard.client.errors import InvalidRequestError
from trainyard.client.git_source import GitSource
from trainyard.client.left_out import program_path, relative_entries
from trainyard.client.program_command import Per, Program, parse_command, with_config, with_variables
from trainyard.client.program_files import module_note, named_program, require_executable, require_files
from trainyard.client.program_notebooks import output_notebooks
from trainyard.client.program_python import ProgramPython
from trainyard.client.program_wrappers import program_position
from trainyard.contract.base import MAX_DISPLAY_NAME
from trainyard.contract.spec.sections import WarningSignal
from trainyard.contract.spec.user_code import program_name

_TIME = re.compile(
    r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,3}):(?P<minutes>\d{2})(?::\d{2})?|(?P<number>\d{1,6})(?P<unit>[mhd])"
)
_UNIT_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}
_SIGNAL = re.compile(r"(?P<name>[A-Za-z0-9]+)(?:@(?P<number>\d{1,6})(?P<unit>[smh]?))?")
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """How to run a program; `trainyard.run` describes the options. Options that are None are not in the spec."""

    gpus: int | None = None
    nodes: int | None = None
    per: Per | None = None
    partition: str | None = None
    time: str | None = None
    name: str | None = None
    project: str | None = None
    code: str | Path | None = None
    include: Sequence[str | Path] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    venv: str | Path | None = None
    active_venv: bool = True
    container: str | None = None
    retries: int | None = None
    resume_flag: str | None = None
    keep: Sequence[str] = ()
    after: Sequence[str] = ()
    signal: str | None = None


def program_spec(
    program: Program,
    options: ProgramOptions,
    source: GitSource | None,
    python: ProgramPython,
    folder: CodeFolder,
    uploaded: Collection[str],
) -> dict[str, Any]:
    """Return the spec that runs the program, without the digest of its code.

    Args:
        source: The git state of the folder, if it is in a work tree.
        python: The Python that runs the program.
        folder: The folder of the code.
        uploaded: The files of the folder that are uploaded.

    Raises:
        InvalidRequestError: an option is not understood.
    """
    name = options.name or _name_of(program)
    variables = relative_entries({**program.variables, **options.env}, folder, uploaded)
    program = with_variables(replace(program, variables={}), variables)
    environment = {**python.fields, "variables": {**program.variables}, "secrets": list(options.secrets) or None}
    signal = parse_signal(options.signal) if options.signal is not None else None
    limits = {
        "partition": options.partition,
        "time_limit_minutes": parse_minutes(options.time) if options.time is not None else None,
    }
    if options.per:
        program = replace(program, per=options.per)
    keep = [*options.keep, *output_notebooks(program.argv)]
    size = _size(program, options.gpus, options.nodes)
    return _without_empty(
        {
            "version": 1,
            "name": name,
            "project": options.project or (source.repository[:MAX_DISPLAY_NAME] or None if source else None),
            "task": "script",
            "argv": list(program.argv),
            "resume_argv": _split(options.resume_flag) if options.resume_flag else None,
            "keep": keep or None,
            "launch": _launch(program, size["gpus"], folder) or None,
            "after": list(options.after) or None,
            "gpus": size.pop("gpus"),
            "resources": _without_empty(size | limits),
            "environment": _without_empty(environment),
            "restart": _without_empty({"max_retries": options.retries, "signal": signal}),
            "metadata": source.labels if source else {},
        }
    )


def _name_of(program: Program) -> str:
    """Return a name for the job of a program, also behind a wrapper such as `env A=1` or `uv run`."""
    kind, named = named_program(program)
    if kind:
        return program_name(("-m", named) if kind == "module" else (named,))
    return program_name(program.argv[program_position(program.argv) :] or program.argv)


def parse_minutes(text: str) -> int:
    """Parse a time limit such as `90m`, `4h`, `2d`, `1-12:00` or `12:30:00`, and return its minutes.

    Raises:
        InvalidRequestError: the text has another form.
    """
    match = _TIME.fullmatch(text.strip())
    if match and match["unit"]:
        minutes = int(match["number"]) * _UNIT_MINUTES[match["unit"]]
    elif match:
        minutes = (int(match["days"] or 0) * 24 + int(match["hours"])) * 60 + int(match["minutes"])
    else:
        minutes = 0
    if minutes < 1:
        message = f"{text!r} is not a time limit; use 90m, 4h, 2d or 1-12:00 (days-hours:minutes)"
        raise InvalidRequestError(message, param="time")
    return minutes


def parse_signal(text: str) -> dict[str, Any]:
    """Parse `SIGUSR1`, `USR1@2m` or, in seconds as sbatch takes it, `USR1@120`, and return the spec's fields.

    Raises:
        InvalidRequestError: the text has another form.
    """
    match = _SIGNAL.fullmatch(text.strip())
    name = f"SIG{match['name'].upper().removeprefix('SIG')}" if match else ""
    if match is None or name not in get_args(WarningSignal.model_fields["name"].annotation):
        message = f"{text!r} is not SIGUSR1, SIGUSR2, SIGTERM or SIGINT, alone or with a time: SIGUSR1@2m, SIGUSR1@90s"
        raise InvalidRequestError(message, param="signal")
    lead = int(match["number"]) * _UNIT_SECONDS[match["unit"]] / 60 if match["number"] else None
    return _without_empty({"name": name, "lead_minutes": lead})


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} cannot be split into arguments: {error}", param="resume_flag") from None


def _launch(program: Program, gpus: int, folder: CodeFolder) -> dict[str, Any]:
    """Return the fields of `launch` that differ from their defaults."""
    fields: dict[str, Any] = {"mode": "exec"} if program.is_command else {}
    if folder.start:
        fields["folder"] = folder.start
    if program.per != "rank":
        fields["per"] = program.per
    is_single = gpus == 1 or program.per == "job"
    if is_single and bool(program.distributed) == program.is_command:
        # The contract's default: a Python program is distributed, and a command is not.
        fields["distributed"] = bool(program.distributed)
    return fields


def _size(program: Program, gpus: int | None, nodes: int | None) -> dict[str, int]:
    """Return the number of ranks and, for several nodes, the ranks per node.

    Raises:
        InvalidRequestError: the options contradict each other.
    """
    for option, given, of_launcher in (("gpus", gpus, program.ranks), ("nodes", nodes, program.nodes)):
        if given and of_launcher and given != of_launcher:
            message = f"is {given}, but the program's launcher has {of_launcher}; remove one of them"
            raise InvalidRequestError(message, param=option)
    if program.counts_gpus and not gpus and not program.ranks:
        message = "is required: the launcher of the command would start a process for each GPU that it finds"
        raise InvalidRequestError(message, param="gpus")
    total, parts = gpus or program.ranks or 1, nodes or program.nodes
    if program.per == "job" and parts and parts > 1:
        message = f"is {parts}, but the command is started once, on one node; use --per node or --per rank"
        raise InvalidRequestError(message, param="nodes")
    if parts and total % parts:
        message = f"{total} GPUs cannot be divided among {parts} nodes; gpus is the number of all GPUs"
        raise InvalidRequestError(message, param="gpus")
    return {"gpus": total} | ({"gpus_per_node": total // parts} if parts and parts > 1 else {})


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def read_program(command: Sequence[str], folder: CodeFolder) -> tuple[Program, str | None]:
    """Return the program of the command, and a note about where it must be if the folder does not have it.

    Raises:
        InvalidRequestError: the command is not understood, or the folder lacks the program.
    """
    if not folder.root.is_dir():
        raise InvalidRequestError(f"there is no folder {os.path.abspath(folder.root)!r}", param="code")
    working = folder.working
    program = with_config(parse_command(command), working)
    if program.is_command and "/" not in program.argv[0]:
        if (working / program.argv[0]).is_file() and shutil.which(program.argv[0]) is None:
            message = f"{program.argv[0]!r} is a file of the folder, as which its name is ./{program.argv[0]}"
            raise InvalidRequestError(message, param="command")
        require_files(program, folder)
        return program, module_note(program, folder)
    argv, note = program_path(program.argv, folder)
    if program.is_command and "/" not in argv[0]:
        argv = (f"./{argv[0]}", *argv[1:])
    if program.is_command and (working / argv[0]).is_file():
        require_executable(working, argv[0])
    program = replace(program, argv=argv)
    require_files(program, folder)
    return program, note or module_note(program, folder)
