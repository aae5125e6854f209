"""`tag`, `note`, `rename`, `archive` and `views`: names and tags of jobs, and saved views of the runs table."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.arguments import JobArgument, JobsArgument, JsonOption, find_job, find_jobs, make_client
from trainyard.cli.errors import UsageError
from trainyard.cli.output import print_json, print_line, print_list
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobResource


def tag(
    ctx: typer.Context,
    job_ids: JobsArgument,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="TAG[=TEXT]", help="Add a tag; can be repeated.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="Remove a tag.")] = None,
    project: Annotated[
        str | None, typer.Option(help="Move the jobs to this project; an empty text takes them out of theirs.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add tags to jobs, or remove them.

    Example: trainyard tag last --add baseline --add stage=prod
    """
    tags: dict[str, str | None] = {}
    for text in add or ():
        name, _, value = text.partition("=")
        tags[name] = value
    tags |= dict.fromkeys(remove or ())
    if not tags and project is None:
        raise UsageError("give --add, --remove or --project, like: trainyard tag last --add baseline")
    _each(
        ctx,
        job_ids,
        lambda client, job: client.edit(job.id, project=project, tags=tags or None),
        _tags,
        as_json=as_json,
    )


def _tags(job: JobResource) -> str:
    tags = ", ".join(f"{name}={text}" if text else name for name, text in sorted(job.tags.items()))
    project = f"project {job.project}, " if job.project else ""
    return f"{project}tags: {tags or 'none'}"


def note(
    ctx: typer.Context,
    job_id: JobArgument,
    text: Annotated[str | None, typer.Argument(help="The notes, in Markdown; an empty text removes them.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the notes from this file; `-`: from standard input.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the notes of a job; without a text, print them.

    Example: trainyard note last "Diverged after the **warm-up**."
    """
    if text is not None and file is not None:
        raise UsageError("give the text or --file, not both")
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if text is not None:
            job = client.edit(job.id, notes=text)
    if as_json:
        print_json(job)
    elif text is None:
        for line in (job.notes or "").splitlines():
            print_line(line)
    else:
        print_line(f"job {job.id}: notes {'written' if text else 'removed'}")


def rename(
    ctx: typer.Context,
    job_id: JobArgument,
    name: Annotated[str, typer.Argument(help="The new name.")],
    as_json: JsonOption = False,
) -> None:
    """Give a job another name. Its id, folder and spec stay.

    Example: trainyard rename last baseline
    """
    _each(ctx, [job_id], lambda client, job: client.edit(job.id, name=name), _name, as_json=as_json)


def _name(job: JobResource) -> str:
    return f"renamed to {job.name}"


def archive(
    ctx: typer.Context,
    job_ids: JobsArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Take the jobs out of the archive.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Archive jobs that have ended: lists leave them out, and nothing is deleted.

    Example: trainyard archive old-run
    """
    _each(ctx, job_ids, lambda client, job: client.edit(job.id, archived=not undo), _archived, as_json=as_json)


def _archived(job: JobResource) -> str:
    return "archived" if job.archived else "no longer archived"


def views(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List saved views of the runs table: yours and shared ones. `trainyard list --view NAME` shows a view.

    Example: trainyard views
    """
    with make_client(ctx) as client:
        saved = list(client.views())
    print_list(
        saved,
        ("NAME", "WHERE", "SORT", "COLUMNS", "BY", "SHARED"),
        lambda view: (
            view.name,
            view.where or "-",
            view.sort or "-",
            ", ".join(view.columns) or "-",
            view.created_by,
            "yes" if view.shared else "no",
        ),
        as_json=as_json,
        empty_message="no saved views yet; the page of jobs saves them",
        optional=("SHARED", "BY"),
    )


def _each(
    ctx: typer.Context,
    references: list[str],
    change: Callable[[Client, JobResource], JobResource],
    describe: Callable[[JobResource], str],
    *,
    as_json: bool,
) -> None:
    """Find all jobs, then change each and print the result."""
    with make_client(ctx) as client:
        for job in find_jobs(client, references):
            changed = change(client, job)
            if as_json:
                print_json(changed)
            else:
                print_line(f"job {changed.id}: {describe(changed)}")
