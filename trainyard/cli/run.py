"""`run`: submits a program as it is, follows its log, and ends with its exit code."""

import codecs
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, get_args

import typer
import yaml

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.errors import FAILED, INTERRUPTED, UsageError
from trainyard.cli.logs import Follower, LogPosition
from trainyard.cli.output import print_error, print_json, print_line, print_text
from trainyard.cli.program_command import Program, parse_command
from trainyard.cli.watch import print_outcome
from trainyard.client import Client
from trainyard.client.code_archive import pack
from trainyard.client.git_source import GitSource, read_git
from trainyard.contract.spec.sections import WarningSignal
from trainyard.contract.spec.user_code import expected_code_files
from trainyard.contract.wire.jobs import JobResource

_TIME = re.compile(
    r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,3}):(?P<minutes>\d{2})(?::\d{2})?|(?P<number>\d{1,6})(?P<unit>[mhd])"
)
_UNIT_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}
_SIGNAL = re.compile(r"(?P<name>[A-Za-z0-9]+)(?:@(?P<number>\d{1,6})(?P<unit>[smh]?))?")
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_minutes(text: str) -> int:
    """Parse a time limit such as `90m`, `4h`, `2d`, `1-12:00` or `12:30:00`, and return its minutes.

    Raises:
        typer.BadParameter: the text has another form.
    """
    match = _TIME.fullmatch(text.strip())
    if match and match["unit"]:
        minutes = int(match["number"]) * _UNIT_MINUTES[match["unit"]]
    elif match:
        minutes = (int(match["days"] or 0) * 24 + int(match["hours"])) * 60 + int(match["minutes"])
    else:
        minutes = 0
    if minutes < 1:
        raise typer.BadParameter(f"{text!r} is not a time limit; use 90m, 4h, 2d or 1-12:00 (days-hours:minutes)")
    return minutes


def parse_signal(text: str) -> dict[str, Any]:
    """Parse `SIGUSR1`, `USR1@2m` or, in seconds as sbatch takes it, `USR1@120`, and return the spec's fields.

    Raises:
        typer.BadParameter: the text has another form.
    """
    match = _SIGNAL.fullmatch(text.strip())
    name = f"SIG{match['name'].upper().removeprefix('SIG')}" if match else ""
    if match is None or name not in get_args(WarningSignal.model_fields["name"].annotation):
        raise typer.BadParameter(f"{text!r} is no SIGUSR1, SIGUSR2, SIGTERM or SIGINT, also as SIGUSR1@2m or @90s")
    lead = int(match["number"]) * _UNIT_SECONDS[match["unit"]] / 60 if match["number"] else None
    return _without_empty({"name": name, "lead_minutes": lead})


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- PROGRAM [ARGUMENTS]...", help="A Python file or module, with `python`, `torchrun` or the like."
    ),
]
GpusOption = Annotated[
    int | None, typer.Option(min=1, help="Number of GPUs, or of CPU processes on a machine without GPUs; default: 1.")
]
NodesOption = Annotated[int | None, typer.Option(min=1, help="Number of nodes among which the GPUs are divided.")]
PartitionOption = Annotated[str | None, typer.Option(help="Slurm partition; default: the cluster's.")]
TimeOption = Annotated[
    int | None, typer.Option(metavar="TIME", parser=parse_minutes, help="Time limit: 90m, 4h, 2d or 1-12:00.")
]
NameOption = Annotated[str | None, typer.Option(help="Display name of the job; default: the program's.")]
FolderOption = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to upload.")]
VariableOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable; can be repeated.")
]
VenvOption = Annotated[Path | None, typer.Option(help="Folder of a virtual environment on the nodes.")]
ContainerOption = Annotated[str | None, typer.Option(metavar="IMAGE", help="Container image for the ranks.")]
RetriesOption = Annotated[int | None, typer.Option(min=0, max=100, help="Retries after errors; default: 2.")]
SignalOption = Annotated[
    dict[str, Any] | None,
    typer.Option(
        metavar="NAME[@TIME]", parser=parse_signal, help="The program's warning, this long before its end: SIGUSR1@2m."
    ),
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Return when the job is accepted.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the spec as YAML; submit nothing.")]


def run(
    ctx: typer.Context,
    command: CommandArgument = None,
    gpus: GpusOption = None,
    nodes: NodesOption = None,
    partition: PartitionOption = None,
    time: TimeOption = None,
    name: NameOption = None,
    code: FolderOption = Path(),
    env: VariableOption = None,
    venv: VenvOption = None,
    container: ContainerOption = None,
    retries: RetriesOption = None,
    signal: SignalOption = None,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a program of yours, unchanged, from this folder.

    It prints the log of rank 0 and ends with the program's exit code. Ctrl-C does not stop the job.

    Example: trainyard run --gpus 4 -- python train.py --lr 3e-4
    """
    program = _read_program(command or [], code)
    source = read_git(code)
    environment = {
        "venv": str(venv.expanduser().absolute()) if venv else None,
        "container": {"image": container} if container else None,
        "variables": {**program.variables, **_variables(env or [])},
    }
    document = _without_empty(
        {
            "version": 1,
            "name": name or _display_name(program),
            "task": "script",
            "argv": list(program.argv),
            **_size(program, gpus, nodes),
            "environment": _without_empty(environment),
            "restart": _without_empty({"max_retries": retries, "signal": signal}),
            "metadata": source.labels if source else {},
        }
    )
    limits = _without_empty({"partition": partition, "time_limit_minutes": time})
    document |= _without_empty({"resources": {**document.get("resources", {}), **limits}})
    if dry_run:
        print_text(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000))
        return
    with make_client(ctx) as client:
        job = _submit(client, document, code, source, as_json=as_json)
        raise typer.Exit(0 if detach else follow_program(client, job, as_json=as_json))


def _submit(
    client: Client, document: dict[str, Any], folder: Path, source: GitSource | None, *, as_json: bool
) -> JobResource:
    digest = client.upload(pack(folder, source=source))
    job = client.submit(document | {"code": digest}).resource
    if as_json:
        print_json(job)
    else:
        print_line(f"job {job.id} ({job.name}): {client.url}/jobs/{job.id}")
    return job


def follow_program(client: Client, job: JobResource, *, as_json: bool = False) -> int:
    """Print the log of rank 0 until the job ends, and return the exit code of the program."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for _, chunk in Follower(client, job, LogPosition(None, "0"), fixed=False).chunks():
            if not as_json:
                print_text(decoder.decode(chunk.data))
        job = client.job(job.id).resource
    except KeyboardInterrupt:
        print_error(
            f"detached; the job continues. Follow it: trainyard logs {job.id} -f; end it: trainyard cancel {job.id}"
        )
        return INTERRUPTED
    if as_json:
        print_json(job)
    code = 0 if job.status == "succeeded" else print_outcome(job, as_json=as_json)
    program_code = job.error.exit_code if job.error else None
    return program_code if code == FAILED and program_code else code


def _size(program: Program, gpus: int | None, nodes: int | None) -> dict[str, Any]:
    """Return the number of ranks and their division among nodes.

    Raises:
        UsageError: the options contradict each other.
    """
    for option, given, of_launcher in (("--gpus", gpus, program.ranks), ("--nodes", nodes, program.nodes)):
        if given and of_launcher and given != of_launcher:
            raise UsageError(f"{option} is {given}, but the program's launcher has {of_launcher}; remove one of them")
    total, parts = gpus or program.ranks or 1, nodes or program.nodes
    if parts and total % parts:
        raise UsageError(f"--gpus {total} cannot be divided among --nodes {parts}; --gpus is the number of all GPUs")
    return {"gpus": total, "resources": {"gpus_per_node": total // parts} if parts and parts > 1 else {}}


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _variables(pairs: list[str]) -> dict[str, str]:
    parts = [pair.partition("=") for pair in pairs]
    if odd := [pair for pair, (key, equals, _) in zip(pairs, parts, strict=True) if not (key and equals)]:
        raise UsageError(f"--env takes NAME=VALUE, not {odd[0]!r}")
    return {key: value for key, _, value in parts}


def _display_name(program: Program) -> str:
    word = program.argv[1] if program.argv[0] == "-m" else PurePosixPath(program.argv[0]).stem
    return word[:120]


def _read_program(command: list[str], folder: Path) -> Program:
    """Return the program of the command. A module may be installed on the nodes instead of being in the folder.

    Raises:
        UsageError: the command is not understood, or the folder lacks the program.
    """
    program = parse_command(command)
    expected = expected_code_files("script", None, program.argv)
    if program.argv[0] != "-m" and expected and not any((folder / file).is_file() for file in expected):
        raise UsageError(f"there is no file {expected[0]!r} in {str(folder.absolute())!r}; name its folder with --code")
    return program
