"""`checkpoints`, `download`, `fork` and `delete`: what a job has saved, and what becomes of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from trainyard.cli.asking import agrees
from trainyard.cli.failures import UsageError, report
from trainyard.cli.output import age, console, emit, number, one_line, say, show_all, size, table
from trainyard.cli.session import (
    ForceOption,
    JobArgument,
    JobsArgument,
    JsonOption,
    WatchOption,
    client_of,
    find_job,
    find_jobs,
)
from trainyard.cli.specs import change
from trainyard.cli.watching import watch
from trainyard.client import Client, NotFoundError, TrainyardError
from trainyard.client.download import Progress as Told
from trainyard.contract.spec.training_spec import LOOP_TASKS
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import TERMINAL, JobResource


def checkpoints(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """List a job's checkpoints: which is the newest, which the best, and where they lie.

    Example: trainyard checkpoints last
    """
    with client_of(ctx) as client:
        job = find_job(client, job_id)
        found = client.checkpoints(job.id)
    headings = ("STEP", "", "SIZE", "CREATED", "METRICS", "FOLDER")
    show_all(found, headings, _row, as_json=as_json, none=_none(job), spare=("FOLDER", "CREATED"))
    if found and not as_json:
        say(f"in {Path(found[0].path).parent}")
        if policy := job.spec.get("checkpoint"):
            say(_kept(policy["keep_last"], policy["keep_best"]))


def _none(job: JobResource) -> str:
    """What a job without checkpoints has; one that is over will get no more."""
    return "no checkpoints" if job.status in TERMINAL else "no checkpoint yet"


def _kept(last: int, best: dict[str, str] | None) -> str:
    """Which of them stay, by the spec."""
    newest = f"the newest {last} stay" if last > 1 else "the newest stays"
    return f"{newest}, and the best by {best['metric']}" if best else newest


def _row(checkpoint: CheckpointResource) -> tuple[str, ...]:
    marks = [word for word, marked in (("best", checkpoint.best), ("latest", checkpoint.latest)) if marked]
    metrics = ", ".join(f"{key} {number(value)}" for key, value in sorted(checkpoint.metrics.items()))
    return (
        str(checkpoint.step),
        " ".join(marks),
        size(checkpoint.size_bytes),
        age(checkpoint.created_at),
        metrics,
        Path(checkpoint.path).name,
    )


def download(
    ctx: typer.Context,
    job_id: JobArgument,
    export: Annotated[
        bool, typer.Option("--export", help="What was trained: a model, or adapters. The default.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="STEP", help="A checkpoint: its step, `latest` or `best`.")
    ] = None,
    artifact: Annotated[str | None, typer.Option(metavar="PATH", help="One artifact.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to; default: JOBID-export or JOBID-step-STEP here, and for an artifact this folder itself.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a job's export, a checkpoint or an artifact. Called again, it goes on where it broke off.

    Example: trainyard download last --export
    """
    if sum((export, checkpoint is not None, artifact is not None)) > 1:
        raise UsageError("say one of --export, --checkpoint and --artifact")
    with client_of(ctx) as client:
        job = find_job(client, job_id)
        if artifact is not None:
            place = (to or Path()) / Path(artifact).name
            with _writing(place.parent):
                client.download_artifact(job.id, artifact, place)
        else:
            chosen = _chosen(client, job, checkpoint, "checkpoint") if checkpoint is not None else None
            place = to or Path(f"{job.id}-step-{chosen.step}" if chosen else f"{job.id}-export")
            with _writing(place), _bars(quiet=as_json) as told:
                client.download(job.id, place, checkpoint=chosen, progress=told)
    if as_json:
        emit({"object": "download", "job_id": job.id, "path": str(place)})
    else:
        say(str(place))


def _chosen(client: Client, job: JobResource, wanted: str, option: str) -> CheckpointResource:
    """The checkpoint that `option` names. Raises NotFoundError: there is none such."""
    found = client.checkpoints(job.id)
    for one in found:
        if wanted == str(one.step) or (wanted == "latest" and one.latest) or (wanted == "best" and one.best):
            return one
    steps = ", ".join(str(one.step) for one in found)
    there = f"there is no checkpoint {wanted!r}; there are those of steps: {steps}"
    raise NotFoundError(there if found else f"job {job.id} has {_none(job)}", code="checkpoint_not_found", param=option)


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Raises UsageError: nothing can be written there."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise UsageError(f"cannot write to {str(place)!r}: {reason}; name a folder with --to") from None


@contextmanager
def _bars(*, quiet: bool) -> Iterator[Told]:
    """A bar a file on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown: dict[str, Any] = {}
    screen = console(stderr=True)
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as progress:

        def told(path: str, there: int, whole: int) -> None:
            if path not in shown:
                shown[path] = progress.add_task(one_line(path), total=whole)
            progress.update(shown[path], completed=there)

        yield told


def fork(
    ctx: typer.Context,
    job_id: JobArgument,
    step: Annotated[
        int | None, typer.Option(min=0, help="From the checkpoint of this step; default: the newest.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one field, as in optimizer.lr=1e-3; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new job.")] = None,
    follow: WatchOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new job from a job's checkpoint, with its spec and what you set differently.

    Example: trainyard fork last --set steps=400
    """
    with client_of(ctx) as client:
        source = find_job(client, job_id)
        if source.spec["task"] not in LOOP_TASKS:
            told = f"a job of task `{source.spec['task']}` has no checkpoint to start from"
            raise UsageError(f"{told}; submit its spec anew, or run it again: trainyard retry {source.id}")
        if step is not None:
            _chosen(client, source, str(step), "step")
        changes = change(source.spec | ({"name": name} if name is not None else {}), settings or [])
        changes.pop("resume_from", None)
        made = client.fork(source.id, step=step, changes=changes, force=force).resource
        if as_json:
            emit(made)
        else:
            _say_forked(source, made)
        if follow:
            raise typer.Exit(watch(client, made, as_json=as_json))


def _say_forked(source: JobResource, made: JobResource) -> None:
    say(f"job {made.id} ({made.name}) accepted")
    if made.origin is not None:
        differs = ", ".join(made.origin.differs)
        taken = (
            "continues it exactly"
            if made.origin.continues
            else f"takes its weights alone, since these differ: {differs}"
        )
        say(f"it starts from step {made.origin.step} of {source.id} and {taken}")


def delete(
    ctx: typer.Context,
    job_ids: JobsArgument,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Only their checkpoints.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs that are over, with everything they left; or only their checkpoints.

    Example: trainyard delete last --checkpoints
    """
    codes = []
    with client_of(ctx) as client:
        for job in find_jobs(client, job_ids):
            try:
                what = "the checkpoints of " if checkpoints else ""
                if not yes and not as_json and not agrees(f"delete {what}job {job.id} ({one_line(job.name)})?"):
                    continue
                client.delete(job.id, only_checkpoints=checkpoints)
            except TrainyardError as error:
                codes.append(report(error))
                continue
            if as_json:
                emit({"object": "deleted", "id": job.id})
            else:
                say(f"{what}job {job.id} deleted")
    raise typer.Exit(codes[0] if codes else 0)


def usage(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show what jobs hold on disk, by person, and what is left.

    Example: trainyard usage
    """
    with client_of(ctx) as client:
        found = client.usage()
    if as_json:
        emit(found)
        return
    table(("USER", "JOBS", "DISK"), [(user.name, str(user.jobs), size(user.disk_bytes)) for user in found.users])
    quota = f"; {size(found.quota_bytes_per_user)} a person" if found.quota_bytes_per_user else ""
    say(f"{size(found.disk_bytes)} in all, {size(found.free_bytes)} free{quota}")
