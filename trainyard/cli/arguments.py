"""What commands share: options, the client, and lookup of the referenced jobs."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, cast

import typer

from trainyard.cli.completion import complete_job, complete_spec, complete_sweep
from trainyard.cli.errors import UsageError, print_note
from trainyard.client import Client, NotFoundError
from trainyard.contract.wire.jobs import JobResource

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        autocompletion=complete_job,
        help="Id, unique prefix or suffix of an id (at least 4 characters), name (its newest job), or `last`.",
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        autocompletion=complete_job,
        help="Ids, unique prefixes or suffixes of ids (at least 4 characters), names (newest job), or `last`.",
    ),
]
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

_MIN_ABBREVIATION = 4
SEARCH_LIMIT = 2000
"""Number of newest jobs that are searched for an abbreviated id."""


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
    if reference == "last":
        for job in client.jobs(limit=1):
            return job.resource
        raise NotFoundError("there is no job yet; try: trainyard submit digits_ddp --watch")
    try:
        return client.job(reference).resource
    except NotFoundError:
        newest = client.jobs(limit=SEARCH_LIMIT) if len(reference) >= _MIN_ABBREVIATION else ()
        matches = [job.resource for job in newest if is_abbreviation(reference, job.id)]
        matches = matches or _newest_with_name(client, reference)
        if not matches:
            raise
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} jobs have ids like {reference!r}; use a longer part")
    return matches[0]


def _newest_with_name(client: Client, name: str) -> list[JobResource]:
    """Return the newest job of this name, if any, and print which job it is."""
    newest = [job.resource for job in client.jobs(name=name, limit=2)]
    if newest:
        description = "the newest job of this name" if len(newest) > 1 else "the job of this name"
        print_note(f"{name!r} is {newest[0].id}, {description}")
    return newest[:1]


def find_jobs(client: Client, references: Sequence[str]) -> list[JobResource]:
    """Return the referenced jobs in this order, without duplicates. Raises like `find_job`."""
    matches = [find_job(client, reference) for reference in references]
    return list({job.id: job for job in matches}.values())


def is_abbreviation(part: str, full_id: str) -> bool:
    """Return whether `part` is a prefix (with or without the kind) or suffix of the id, of at least four characters."""
    start, kind = part.lower(), full_id.partition("_")[0]
    return len(start) >= _MIN_ABBREVIATION and (
        full_id.endswith(start) or full_id.startswith((start, f"{kind}_{start}"))
    )
