"""`run`: submits an unchanged program, follows its log, and ends with its exit code."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from trainyard.cli.arguments import AfterOption, JsonOption, make_client, print_submitted
from trainyard.cli.errors import FAILED, INTERRUPTED, UsageError, print_note, use_json_output
from trainyard.cli.logs import Follower, LogPosition
from trainyard.cli.output import LogPrinter, format_metric, print_error, print_json, print_text
from trainyard.cli.plots import sparkline
from trainyard.cli.run_problems import named_by_options, with_options
from trainyard.cli.watch import print_outcome
from trainyard.client import Client
from trainyard.client.left_out import missing_file_hint
from trainyard.client.program_command import Per
from trainyard.client.program_spec import ProgramOptions
from trainyard.client.programs import PreparedProgram, prepare_program
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.curves import MetricsResource
from trainyard.contract.wire.jobs import JobResource

_MAX_CURVES = 8
_TRACEBACK_CHARS = 1000
_CURVE_POINTS = 200
_SYSTEM_METRICS = (*SYSTEM_PREFIXES, "perf/")
CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[--] PROGRAM [ARGUMENTS]...",
        help="A Python program, also with `torchrun` or the like, or any other command. Options after it are its own.",
    ),
]
GpusOption = Annotated[
    int | None, typer.Option(min=1, help="Number of GPUs, or of CPU processes on a machine without GPUs; default: 1.")
]
NodesOption = Annotated[int | None, typer.Option(min=1, help="Number of nodes among which the GPUs are divided.")]
PerOption = Annotated[
    Per | None,
    typer.Option(help="Start it once per GPU (`rank`), `node` or `job`; default: Python per GPU, other commands once."),
]
PartitionOption = Annotated[str | None, typer.Option(help="Slurm partition; default: the cluster's.")]
TimeOption = Annotated[str | None, typer.Option(metavar="TIME", help="Time limit: 90m, 4h, 2d or 1-12:00.")]
NameOption = Annotated[str | None, typer.Option(help="Display name of the job; default: the program's.")]
ProjectOption = Annotated[str | None, typer.Option(help="Project of the job; default: the git repository's name.")]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="PATH", help="Upload this too, although git ignores it; can be repeated."),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Upload this and start in it; default: the git repository, or this folder."),
]
VariableOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable; can be repeated.")
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="Variable with a secret of yours (`trainyard secrets`); repeatable."),
]
VenvOption = Annotated[Path | None, typer.Option(help="Folder of a virtual environment on the nodes.")]
NoVenvOption = Annotated[
    bool, typer.Option("--no-venv", help="Ignore the virtual or conda environment that is active here.")
]
ContainerOption = Annotated[str | None, typer.Option(metavar="IMAGE", help="Container image for the ranks.")]
RetriesOption = Annotated[int | None, typer.Option(min=0, max=100, help="Retries after errors; default: 2.")]
ResumeOption = Annotated[
    str | None,
    typer.Option(metavar="ARGUMENTS", help="Added when it resumes: '--resume {checkpoint_dir}/last.pt'."),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATH", help="The program writes this file or folder; its next attempt finds it."),
]
SignalOption = Annotated[
    str | None,
    typer.Option(metavar="NAME[@TIME]", help="The program's warning, this long before the time limit: SIGUSR1@2m."),
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Return when the job is accepted.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the spec; submit nothing.")]


def run(
    ctx: typer.Context,
    command: CommandArgument = None,
    gpus: GpusOption = None,
    nodes: NodesOption = None,
    per: PerOption = None,
    partition: PartitionOption = None,
    time: TimeOption = None,
    name: NameOption = None,
    project: ProjectOption = None,
    code: FolderOption = None,
    include: IncludeOption = None,
    env: VariableOption = None,
    secret: SecretOption = None,
    venv: VenvOption = None,
    no_venv: NoVenvOption = False,
    container: ContainerOption = None,
    retries: RetriesOption = None,
    resume_flag: ResumeOption = None,
    keep: KeepOption = None,
    signal: SignalOption = None,
    after: AfterOption = None,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a program of yours, unchanged, from this folder.

    It prints the log of rank 0 and ends with the program's exit code. Ctrl-C does not stop the job.

    Example: trainyard run --gpus 4 -- python train.py --lr 3e-4
    """
    options = ProgramOptions(gpus=gpus, nodes=nodes, per=per, partition=partition, time=time, name=name)
    options = replace(options, project=project, code=code, include=include or (), env=_variables(env or []))
    options = replace(options, secrets=secret or (), venv=venv, active_venv=not no_venv, container=container)
    options = replace(options, retries=retries, resume_flag=resume_flag, keep=keep or (), signal=signal)
    options = replace(options, after=after or ())
    with named_by_options(options, as_json=as_json):
        program = _prepare(command or [], options, as_json=as_json, dry_run=dry_run)
    with make_client(ctx) as client:
        with named_by_options(options, as_json=as_json):
            job = _submit(client, program, as_json)
        raise typer.Exit(0 if detach else follow_program(client, job, as_json=as_json, program=program))


def _prepare(command: Sequence[str], options: ProgramOptions, *, as_json: bool, dry_run: bool) -> PreparedProgram:
    """Return the program. With `dry_run`, print its spec and exit."""
    use_json_output(as_json)
    program = prepare_program(command, options)
    for note in program.notes:
        print_note(note)
    if dry_run:
        _print_spec(program.document, as_json)
        raise typer.Exit
    return program


def _submit(client: Client, program: PreparedProgram, as_json: bool) -> JobResource:
    job = program.submit(client).resource
    if as_json:
        print_json(job)
    else:
        print_submitted(client, job)
    return job


def _print_spec(document: Mapping[str, Any], as_json: bool) -> None:
    plain = dict(document)
    if as_json:
        print_json(plain)
    else:
        print_text(yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000))


def follow_program(
    client: Client, job: JobResource, *, as_json: bool = False, program: PreparedProgram | None = None
) -> int:
    """Print the log of rank 0 until the job ends, and return the exit code of the program.

    Args:
        program: The program that was submitted, to explain an error about a file.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        with LogPrinter() as printer:
            for _, chunk in Follower(client, job, LogPosition(None, "0"), fixed=False).chunks():
                if not as_json:
                    printer.write(decoder.decode(chunk.data))
        job = client.job(job.id).resource
    except KeyboardInterrupt:
        print_error(
            f"detached; the job continues. Follow it: trainyard logs {job.id} -f; end it: trainyard cancel {job.id}"
        )
        return INTERRUPTED
    if as_json:
        print_json(job)
    else:
        print_curves(client.metrics(job.id, max_points=_CURVE_POINTS))
    code = 0 if job.status == "succeeded" else print_outcome(with_options(job), as_json=as_json)
    if program and job.error and not as_json:
        text = f"{job.error.message}\n{job.error.traceback[-_TRACEBACK_CHARS:]}" if is_missing(job) else ""
        if hint := missing_file_hint(text, program.folder, program.archive.names):
            print_error(f"hint: {hint}")
    program_code = job.error.exit_code if job.error else None
    return program_code if code == FAILED and program_code else code


def is_missing(job: JobResource) -> bool:
    """Whether the job's program did not find a file."""
    error = job.error
    return error is not None and ("FileNotFound" in error.type or "No such file" in error.message)


def print_curves(metrics: MetricsResource) -> None:
    """Print a small chart of each curve of the program with its last value on stderr, behind the program's output."""
    own = [curve for curve in metrics.series if not curve.key.startswith(_SYSTEM_METRICS)]
    for curve in own[:_MAX_CURVES]:
        last = format_metric(curve.key, curve.values[-1])
        print_error(f"{curve.key}  {sparkline(curve.values)}  {last} at step {curve.steps[-1]}")
    if (more := len(own) - _MAX_CURVES) > 0:
        print_error(f"{more + metrics.series_omitted} more curves: trainyard metrics {metrics.job_id}")


def _variables(pairs: list[str]) -> dict[str, str]:
    parts = [pair.partition("=") for pair in pairs]
    if odd := [pair for pair, (key, equals, _) in zip(pairs, parts, strict=True) if not (key and equals)]:
        raise UsageError(f"--env takes NAME=VALUE, not {odd[0]!r}")
    return {key: value for key, _, value in parts}
