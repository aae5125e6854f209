"""`artifacts`: what a job left beside its weights, listed or fetched."""

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from trainyard.cli.failures import UsageError
from trainyard.cli.output import age, emit, say, show_all, size
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job
from trainyard.client import Client
from trainyard.contract.wire.files import ArtifactResource


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
    show_all(found, ("PATH", "SIZE", "WRITTEN"), _row, as_json=as_json, none="no artifacts")


def _row(artifact: ArtifactResource) -> tuple[str, ...]:
    return artifact.path, size(artifact.size_bytes), age(artifact.modified_at)


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
