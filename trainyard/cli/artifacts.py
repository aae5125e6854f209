"""`artifacts`: what a job left beside its weights, listed or fetched."""

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from trainyard.cli.failures import UsageError
from trainyard.cli.output import age, complain, emit, emit_all, say, size, table
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job
from trainyard.client import Client


def artifacts(
    ctx: typer.Context,
    job_id: JobArgument,
    download: Annotated[
        list[str] | None, typer.Option("--download", metavar="PATH", help="Fetch this file; can be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch every file.")] = False,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where fetched files go.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """List what a job left beside its weights (tables, traces), or fetch it.

    Example: trainyard artifacts last
    """
    with client_of(ctx) as client:
        job = find_job(client, job_id)
        if download or everything:
            paths = [found.path for found in client.artifacts(job.id)] if everything else download or []
            _fetch(client, job.id, paths, to, as_json=as_json)
            return
        found = client.artifacts(job.id)
    if as_json:
        emit_all(found)
    elif not found:
        complain("no artifacts")
    else:
        rows = [(artifact.path, size(artifact.size_bytes), age(artifact.modified_at)) for artifact in found]
        table(("PATH", "SIZE", "WRITTEN"), rows)


def _fetch(client: Client, job_id: str, paths: list[str], to: Path, *, as_json: bool) -> None:
    for path in paths:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise UsageError(f"{path!r} is not the path of an artifact")
        place = client.download_artifact(job_id, path, to.joinpath(*parts))
        if as_json:
            emit({"object": "download", "path": path, "file": str(place)})
        else:
            say(f"{place}")
