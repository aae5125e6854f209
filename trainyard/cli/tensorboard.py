"""`tensorboard`: write jobs' metrics as TensorBoard event files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.arguments import TARGET_NAMES, JobsArgument, JsonOption, find_job, make_client
from trainyard.cli.errors import UsageError
from trainyard.cli.event_files import records
from trainyard.cli.output import print_error, print_json, print_line
from trainyard.client import Client
from trainyard.client.download import safe_name
from trainyard.contract.wire.jobs import TERMINAL, JobResource


def tensorboard(
    ctx: typer.Context,
    job_ids: JobsArgument,
    to: Annotated[Path, typer.Option(*TARGET_NAMES, help="Target folder; each job gets a subfolder.")] = Path(
        "tensorboard"
    ),
    as_json: JsonOption = False,
) -> None:
    """Write jobs' metrics as TensorBoard event files.

    Example: trainyard tensorboard last
    """
    try:
        from crc32c import crc32c
    except ImportError:
        raise UsageError("needs a package that is missing: pip install 'trainyard[tensorboard]'") from None
    with make_client(ctx) as client:
        for job_id in job_ids:
            job = find_job(client, job_id)
            folder = to / _folder(job)
            count = _write(client, job, folder, crc32c)
            if as_json:
                print_json({"object": "event_files", "job_id": job.id, "path": str(folder), "points": count})
            else:
                print_line(f"{job.id}: {count} points") if count else print_error(f"{job.id}: {_none(job)}")
    if not as_json:
        print_line(f"view them with: tensorboard --logdir {to}")


def _none(job: JobResource) -> str:
    return "ended without metrics" if job.status in TERMINAL else "no metrics yet"


def _folder(job: JobResource) -> str:
    """Return a folder name with the job's name and id, without characters that are unsafe in a path."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.name).strip("-")[:60] or "job"
    return f"{name}-{safe_name(job.id)[-6:]}"


def _write(client: Client, job: JobResource, folder: Path, checksum: Callable[[bytes], int]) -> int:
    series_list = client.metrics(job.id).series
    folder.mkdir(parents=True, exist_ok=True)
    # A fixed name: a repeated call replaces the file, so that TensorBoard does not show points twice.
    path = folder / f"events.out.tfevents.0000000000.{safe_name(job.id)}"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.writelines(records(series_list, checksum))
    partial.replace(path)
    return sum(len(series.steps) for series in series_list)
