"""Shared parts of commands: options, the client, and lookup of the referenced jobs and sweeps."""

import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, cast

import typer

from trainyard.cli.completion import complete_job, complete_spec, complete_sweep
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.output import print_line
from trainyard.client import Client, ConflictError, NotFoundError
from trainyard.client.references import LAST, SEARCH_LIMIT, is_abbreviation, split_end
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.sweeps import SweepDetail

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
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB[:ended]",
        autocompletion=complete_job,
        help="Start after this job has succeeded, or with :ended in any way; can be repeated.",
    ),
]
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


def find_prerequisites(client: Client, references: Sequence[str]) -> list[str]:
    """Return the references of `--after` with the ids of their jobs, as specs have them. Raises like `find_job`."""
    split = [split_end(reference) for reference in references]
    return [find_job(client, job).id + end for job, end in split]


def find_sweep(client: Client, reference: str) -> SweepDetail:
    """Return the sweep with this id, a unique prefix or suffix of an id, or a name; `last` is the newest sweep.

    Raises:
        NotFoundError: there is no such sweep.
        UsageError: the abbreviation is ambiguous.
    """
    reference = reference.strip()
    if reference == LAST:
        newest = next(iter(client.sweeps()), None)
        if newest is None:
            raise NotFoundError("there is no sweep yet; try: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3")
        return client.sweep(newest.id)
    try:
        return client.sweep(reference)
    except NotFoundError:
        listed = list(itertools.islice(client.sweeps(), SEARCH_LIMIT))
        matches = [one.id for one in listed if is_abbreviation(reference, one.id)]
        matches = matches or [one.id for one in listed if one.name == reference][:1]
        if not matches:
            raise NotFoundError(f"there is no sweep {reference!r}", code="sweep_not_found") from None
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} sweeps have ids like {reference!r}; use a longer part")
    return client.sweep(matches[0])
