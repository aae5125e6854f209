"""`media`: list or download the images, tables and other media that a job's program logged."""

from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.arguments import TARGET_NAMES, JobArgument, JsonOption, OverwriteOption, find_job, make_client
from trainyard.cli.artifacts import artifact_parts, fetch
from trainyard.cli.output import escape_name, print_list
from trainyard.client.download import safe_name
from trainyard.contract.wire.media import MediaResource


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
            fetch(client, job.id, targets, force=force, as_json=as_json)
            return
    heads = ("KEY", "STEP", "POSITION", "TYPE", "CAPTION", "FILE")
    print_list(listed, heads, _row, as_json=as_json, empty_message="no media")


def _row(item: MediaResource) -> tuple[str, ...]:
    texts = (escape_name(text or "") for text in (item.caption, item.path))
    return escape_name(item.key), str(item.step), str(item.position), item.type, *texts
