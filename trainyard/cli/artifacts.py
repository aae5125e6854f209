"""`artifacts` and `media`: list or download files of a job."""

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from trainyard.cli.arguments import TARGET_NAMES, JobArgument, JsonOption, OverwriteOption, find_job, make_client
from trainyard.cli.errors import UsageError
from trainyard.cli.output import escape_name, format_age, print_json, print_line, print_list
from trainyard.client import Client
from trainyard.client.download import safe_name
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.files import ArtifactResource
from trainyard.contract.wire.media import MediaResource


def artifacts(
    ctx: typer.Context,
    job_id: JobArgument,
    download: Annotated[
        list[str] | None, typer.Option("--download", metavar="PATH", help="Download this artifact; can be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Download all artifacts.")] = False,
    to: Annotated[
        Path | None, typer.Option(*TARGET_NAMES, metavar="FOLDER", help="Target folder; default: JOBID-artifacts.")
    ] = None,
    force: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """List or download a job's artifacts (tables, traces).

    Example: trainyard artifacts last
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if download or everything:
            paths = [listed.path for listed in client.artifacts(job.id)] if everything else download or []
            folder = to or Path(f"{safe_name(job.id)}-artifacts")
            targets = [(path, folder.joinpath(*artifact_parts(path))) for path in paths]
            _fetch(client, job.id, targets, force=force, as_json=as_json)
            return
        listed = client.artifacts(job.id)
    work = f"{job.run_directory}/work on the nodes; `trainyard run --keep PATH` makes them artifacts"
    empty = "no artifacts"
    if task_kind(job.spec["task"]).runs_program:
        empty += f"; other files of the program, if any, are in {work}"
    print_list(listed, ("PATH", "SIZE", "WRITTEN"), _artifact_row, as_json=as_json, empty_message=empty)


def _artifact_row(artifact: ArtifactResource) -> tuple[str, ...]:
    return escape_name(artifact.path), format_size(artifact.size_bytes), format_age(artifact.modified_at)


def artifact_parts(path: str) -> tuple[str, ...]:
    """Return the parts of an artifact's path.

    Raises:
        UsageError: the path leads out of the folder, or is hidden: programs trust files such as `.git/config`.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or any(part.startswith(".") for part in parts) or {"\\", "\0"} & set(path):
        raise UsageError(f"{path!r} is not the path of an artifact")
    return parts


def _fetch(client: Client, job_id: str, targets: list[tuple[str, Path]], *, force: bool, as_json: bool) -> None:
    for path, file in targets:
        target = client.download_artifact(job_id, path, file, overwrite=force)
        if as_json:
            print_json({"object": "download", "path": path, "file": str(target)})
        else:
            print_line(escape_name(str(target)))


def media(
    ctx: typer.Context,
    job_id: JobArgument,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only media that were logged under this name.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Download the files of the listed media.")] = False,
    to: Annotated[
        Path | None, typer.Option(*TARGET_NAMES, metavar="FOLDER", help="Target folder; default: JOBID-media.")
    ] = None,
    force: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """List or download what a job's program logged beside numbers, by key and step.

    Example: trainyard media last --key samples --to samples
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        listed = list(client.media(job.id, key))
        if everything or to is not None:
            folder = to or Path(f"{safe_name(job.id)}-media")
            paths = dict.fromkeys(item.path for item in listed if item.path)
            targets = [(path, folder.joinpath(*artifact_parts(path))) for path in paths]
            _fetch(client, job.id, targets, force=force, as_json=as_json)
            return
    heads = ("KEY", "STEP", "POSITION", "TYPE", "CAPTION", "FILE")
    print_list(listed, heads, _media_row, as_json=as_json, empty_message="no media")


def _media_row(item: MediaResource) -> tuple[str, ...]:
    texts = (escape_name(text or "") for text in (item.caption, item.path))
    return escape_name(item.key), str(item.step), str(item.position), item.type, *texts
