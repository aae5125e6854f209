"""`checkpoints`, `download`, `fork`, `delete` and `usage`: a job's checkpoints and files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import (
    TARGET_NAMES,
    ForceOption,
    JobArgument,
    JobsArgument,
    JsonOption,
    OverwriteOption,
    WatchOption,
    find_job,
    find_jobs,
    make_client,
    print_submitted,
)
from trainyard.cli.artifacts import artifact_parts
from trainyard.cli.confirm import confirm_deletion
from trainyard.cli.errors import UsageError, print_note, report_error
from trainyard.cli.output import (
    escape_name,
    format_age,
    format_number,
    is_terminal,
    one_line,
    print_json,
    print_line,
    print_list,
    print_table,
)
from trainyard.cli.spec_changes import print_changes
from trainyard.cli.specs import apply_settings
from trainyard.cli.watch import watch
from trainyard.client import Client, NotFoundError, TrainyardError
from trainyard.client.download import Progress as ProgressCallback
from trainyard.client.download import no_progress, safe_name
from trainyard.client.references import named_checkpoint
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.proposals import document_differences
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.kind_changes import drop_values_of_former_kinds
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import TERMINAL, JobResource
from trainyard.contract.wire.launch import Origin


def checkpoints(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """List a job's checkpoints, with their metrics and folders.

    Example: trainyard checkpoints last
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        listed = client.checkpoints(job.id)
    headings = ("STEP", "", "SIZE", "SAVED IN", "CREATED", "METRICS", "FOLDER")
    print_list(
        listed,
        headings,
        _row,
        as_json=as_json,
        empty_message=_no_checkpoints_message(job),
        optional=("SAVED IN", "FOLDER", "CREATED"),
    )
    if listed and not as_json:
        print_line(f"in {Path(listed[0].path).parent}")
        if policy := job.spec.get("checkpoint"):
            print_line(_retention(policy["keep_last"], policy["keep_best"]))


def _no_checkpoints_message(job: JobResource) -> str:
    """Return the message for a job without checkpoints; an active job may still write checkpoints."""
    return "no checkpoints" if job.status in TERMINAL else "no checkpoint yet"


def _retention(last: int, best: dict[str, str] | None) -> str:
    """Return the spec's retention policy as text."""
    newest = f"keeps the newest {last}" if last > 1 else "keeps the newest"
    return f"{newest}, and the best by {best['metric']}" if best else newest


def _row(checkpoint: CheckpointResource) -> tuple[str, ...]:
    marks = [word for word, marked in (("best", checkpoint.best), ("latest", checkpoint.latest)) if marked]
    metrics = ", ".join(f"{key} {format_number(value)}" for key, value in sorted(checkpoint.metrics.items()))
    return (
        str(checkpoint.step),
        " ".join(marks),
        format_size(checkpoint.size_bytes),
        f"{checkpoint.seconds:.1f} s" if checkpoint.seconds is not None else "",
        format_age(checkpoint.created_at),
        metrics,
        Path(checkpoint.path).name,
    )


def download(
    ctx: typer.Context,
    job_id: JobArgument,
    export: Annotated[bool, typer.Option("--export", help="The trained model or adapters (default).")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="STEP", help="A checkpoint: its step, `latest` or `best`.")
    ] = None,
    artifact: Annotated[str | None, typer.Option(metavar="PATH", help="One artifact.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            *TARGET_NAMES,
            metavar="FOLDER",
            help="Target folder; default: JOBID-export, JOBID-step-STEP or JOBID-artifacts.",
        ),
    ] = None,
    force: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Download a job's export, checkpoint or artifact. A repeated call continues an interrupted download.

    Example: trainyard download last --export
    """
    if sum((export, checkpoint is not None, artifact is not None)) > 1:
        raise UsageError("use only one of --export, --checkpoint and --artifact")
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if artifact is not None:
            target = (to or Path(f"{safe_name(job.id)}-artifacts")) / artifact_parts(artifact)[-1]
            with translate_write_errors(target.parent):
                client.download_artifact(job.id, artifact, target, overwrite=force)
        else:
            chosen = find_checkpoint(client, job, checkpoint, "checkpoint") if checkpoint is not None else None
            target = to or Path(f"{safe_name(job.id)}-step-{chosen.step}" if chosen else f"{safe_name(job.id)}-export")
            left_out: list[str] = []
            with translate_write_errors(target), progress_bars(quiet=as_json) as report_bytes:
                client.download(
                    job.id, target, checkpoint=chosen, progress=report_bytes, overwrite=force, left_out=left_out
                )
            if left_out:
                print_note(f"left out {len(left_out)} hidden files, such as {escape_name(left_out[0])}")
    if as_json:
        print_json({"object": "download", "job_id": job.id, "path": str(target)})
    else:
        print_line(escape_name(str(target)))


def find_checkpoint(client: Client, job: JobResource, reference: str, option: str) -> CheckpointResource:
    """Return the checkpoint of this step, `latest` or `best`. Raises NotFoundError, with `option` as its parameter."""
    listed = client.checkpoints(job.id)
    if (named := named_checkpoint(listed, reference)) is not None:
        return named
    steps = ", ".join(str(candidate.step) for candidate in listed)
    valid = "" if reference.isdecimal() else "; use `best`, `latest` or a step"
    message = f"there is no checkpoint {reference!r}{valid}; available steps: {steps}"
    raise NotFoundError(
        message if listed else f"job {job.id} has {_no_checkpoints_message(job)}",
        code="checkpoint_not_found",
        param=option,
    )


@contextmanager
def translate_write_errors(target: Path) -> Iterator[None]:
    """Translate errors of writing to `target` to UsageError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise UsageError(f"cannot write to {str(target)!r}: {reason}; name a folder with --to") from None


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[ProgressCallback]:
    """Show a progress bar for each file on stderr if that is a terminal; yields the callback of a download."""
    if quiet or not is_terminal(stderr=True):
        yield no_progress
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from trainyard.cli.tables import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown: dict[str, Any] = {}
    with Progress(*columns, console=console(stderr=True)) as progress:

        def report_bytes(path: str, bytes_done: int, size: int) -> None:
            if path not in shown:
                shown[path] = progress.add_task(escape_name(path), total=size)
            progress.update(shown[path], completed=bytes_done)

        yield report_bytes


def fork(
    ctx: typer.Context,
    job_id: JobArgument,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one field, as in optimizer.lr=1e-3; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new job.")] = None,
    follow: WatchOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new job from a job's checkpoint, with its spec and your changes.

    Example: trainyard fork last --set steps=400
    """
    with make_client(ctx) as client:
        source = find_job(client, job_id)
        if source.spec["task"] not in LOOP_TASKS:
            reason = f"a job of task `{source.spec['task']}` has no checkpoint to start from"
            raise UsageError(f"{reason}; submit its spec anew, or run it again: trainyard retry {source.id}")
        if step is not None:
            find_checkpoint(client, source, str(step), "step")
        overrides = {"resume": "state", "after": []} | ({"name": name} if name is not None else {})
        changed = apply_settings(source.spec | overrides, settings or [])
        chosen = {setting.partition("=")[0] for setting in settings or []}
        changes = drop_values_of_former_kinds(source.spec, changed, chosen)
        changes.pop("resume_from", None)
        if not as_json:
            origin = {"resume_from": source.id if step is None else f"{source.id}:{step}"}
            print_line(f"the spec of {source.id} with these changes:")
            print_changes(document_differences(source.spec, {**changes, **origin}))
        new_job = client.fork(source.id, step=step, changes=changes, force=force).resource
        if as_json:
            print_json(new_job)
        else:
            print_submitted(client, new_job)
            _print_origin(source, new_job)
        if follow:
            raise typer.Exit(watch(client, new_job, as_json=as_json))


def _print_origin(source: JobResource, new_job: JobResource) -> None:
    if new_job.origin is not None:
        print_line(f"it starts from step {new_job.origin.step} of {source.id} and {_describe_origin(new_job.origin)}")


def _describe_origin(origin: Origin) -> str:
    if not origin.continues:
        return "uses only its weights, as `resume` requests"
    if origin.differs:
        return f"continues it with other values of {', '.join(origin.differs)}"
    if origin.layout_differs:
        fields = ", ".join(origin.layout_differs)
        return f"continues it, equal to rounding and not to the last digit, because sums have another order: {fields}"
    return "continues it exactly"


def delete(
    ctx: typer.Context,
    job_ids: JobsArgument,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Only their checkpoints.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs that have ended, with their files; or only their checkpoints.

    Example: trainyard delete last --checkpoints
    """
    codes = []
    with make_client(ctx) as client:
        for job in find_jobs(client, job_ids):
            try:
                what = "the checkpoints of " if checkpoints else ""
                if (
                    not yes
                    and not as_json
                    and not confirm_deletion(f"delete {what}job {job.id} ({one_line(job.name)})?")
                ):
                    continue
                client.delete(job.id, only_checkpoints=checkpoints)
            except TrainyardError as error:
                codes.append(report_error(error))
                continue
            if as_json:
                print_json({"object": "deleted", "id": job.id})
            else:
                print_line(f"deleted {what}job {job.id}")
    raise typer.Exit(codes[0] if codes else 0)


def usage(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show the disk use by user, and the free space.

    Example: trainyard usage
    """
    with make_client(ctx) as client:
        listed = client.usage()
    if as_json:
        print_json(listed)
        return
    print_table(
        ("USER", "JOBS", "DISK"), [(user.name, str(user.jobs), format_size(user.disk_bytes)) for user in listed.users]
    )
    quota = f"; {format_size(listed.quota_bytes_per_user)} per user" if listed.quota_bytes_per_user else ""
    print_line(f"{format_size(listed.disk_bytes)} in total, {format_size(listed.free_bytes)} free{quota}")
