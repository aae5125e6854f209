"""`tensorboard`: the metrics of jobs as files that TensorBoard reads."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.event_files import records
from trainyard.cli.failures import UsageError
from trainyard.cli.output import complain, emit, say
from trainyard.cli.session import JobsArgument, JsonOption, client_of, find_job
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobResource


def tensorboard(
    ctx: typer.Context,
    job_ids: JobsArgument,
    to: Annotated[Path, typer.Option(help="Where to put the files, a folder for each job.")] = Path("tensorboard"),
    as_json: JsonOption = False,
) -> None:
    """Write jobs' metrics as TensorBoard event files.

    Example: trainyard tensorboard last
    """
    try:
        from crc32c import crc32c
    except ImportError:
        raise UsageError("needs a package that is missing: pip install 'trainyard[tensorboard]'") from None
    with client_of(ctx) as client:
        for job_id in job_ids:
            job = find_job(client, job_id)
            folder = to / _folder(job)
            count = _write(client, job, folder, crc32c)
            if as_json:
                emit({"object": "event_files", "job_id": job.id, "path": str(folder), "points": count})
            else:
                say(f"{job.id}: {count} points") if count else complain(f"{job.id}: no metrics yet")
    if not as_json:
        say(f"to look at them: tensorboard --logdir {to}")


def _folder(job: JobResource) -> str:
    """A name to recognise in TensorBoard, with nothing in it that a path could be led astray by."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.name).strip("-")[:60] or "job"
    return f"{name}-{job.id[-6:]}"


def _write(client: Client, job: JobResource, folder: Path, checksum: Callable[[bytes], int]) -> int:
    found = client.metrics(job.id).series
    folder.mkdir(parents=True, exist_ok=True)
    # One name, so that writing again replaces what was there instead of showing every point twice.
    path = folder / f"events.out.tfevents.0000000000.{job.id}"
    aside = path.with_suffix(".partial")
    with aside.open("wb") as file:
        file.writelines(records(found, checksum))
    aside.replace(path)
    return sum(len(series.steps) for series in found)
