"""What commands share: options, the client, and lookup of the referenced jobs."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, cast

import typer

from trainyard.cli.completion import complete_job, complete_spec, complete_sweep
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.output import print_line
from trainyard.client import Client, ConflictError
from trainyard.client.references import LAST
from trainyard.contract.wire.jobs import JobResource

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        autocompletion=complete_job,
        help="Id, unique prefix or suffix of an id (at least 4 characters), name (its newest job), or `last`.",
    ),
]
JOBS_HELP = "Ids, unique prefixes or suffixes of ids (at least 4 characters), names (newest job), or `last`."
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB", autocompletion=complete_job, help=JOBS_HELP)]
SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", autocompletion=complete_spec, help="A YAML or JSON file, a preset's name, or - for stdin."
    ),
]
SweepOption = Annotated[
    str | None, typer.Option(autocompletion=complete_sweep, help="All jobs of this sweep; `last` is the newest sweep.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it ends.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Submit even if the plan exceeds the memory.")]
OverwriteOption = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Repeating a command with the same key does not submit it twice."),
]

TARGET_NAMES = ("--to", "--output")
"""The names of the option for the target of a download or an export."""

_RELATIVE_TIME = re.compile(r"(\d{1,6})\s*(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_date(text: str) -> datetime:
    """Parse `2026-01-31`, `2026-01-31 12:00` (UTC by default), or an age such as `30min`, `2h`, `3d` or `1w`.

    Raises:
        typer.BadParameter: the text has another form.
    """
    try:
        if ago := _RELATIVE_TIME.fullmatch(text.strip()):
            return datetime.now(UTC) - int(ago[1]) * _UNITS[ago[2]]
        matches = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a date; use 2026-01-31, '2026-01-31 12:00', 2h or 3d") from None
    return matches if matches.tzinfo is not None else matches.replace(tzinfo=UTC)


SinceOption = Annotated[
    datetime | None,
    typer.Option("--since", metavar="WHEN", parser=parse_date, help="Only since this time: 2026-01-31 (UTC), 2h, 3d."),
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", metavar="WHEN", parser=parse_date, help="Only before this time.")
]


def make_client(ctx: typer.Context, url: str | None = None, token: str | None = None) -> Client:
    """Return a client for this command; tests put their own factory into the context."""
    given = {name: value for name, value in (("url", url), ("token", token)) if value}
    return cast("Callable[..., Client]", ctx.obj or Client)(**given)


def find_job(client: Client, reference: str) -> JobResource:
    """Return the job with this id, a unique prefix or suffix of an id, or a name; `last` is the newest job.

    Raises:
        NotFoundError: there is no such job.
        UsageError: the abbreviation is ambiguous.
    """
    reference = reference.strip()
    try:
        job = client.job(reference).resource
    except ConflictError as error:
        raise UsageError(error.message) from None
    if reference != LAST and job.name == reference and len(list(client.jobs(name=reference, limit=2))) > 1:
        print_note(f"{reference!r} is {job.id}, the newest job of this name")
    return job


def print_submitted(client: Client, job: JobResource) -> None:
    """Print the id and name of a new job, and the address of its page."""
    print_line(f"job {job.id} ({job.name}): {client.job_url(job.id)}")


def find_jobs(client: Client, references: Sequence[str]) -> list[JobResource]:
    """Return the referenced jobs in this order, without duplicates. Raises like `find_job`."""
    matches = [find_job(client, reference) for reference in references]
    return list({job.id: job for job in matches}.values())
