"""What commands share: the client of this invocation, and finding the job that a person means."""

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
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Repeating a command with the same key does not submit it twice."),
]

_AGO = re.compile(r"(\d{1,6})\s*(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_date(text: str) -> datetime:
    """`2026-01-31`, `2026-01-31 12:00` (both UTC, unless it says otherwise), `30min`, `2h`, `3d`, `1w`.

    Raises:
        typer.BadParameter: it is none of them.
    """
    try:
        if ago := _AGO.fullmatch(text.strip()):
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

_SHORTEST = 4
SEARCH_LIMIT = 2000
"""Newest jobs among which an abbreviation is looked up."""


def client_of(ctx: typer.Context) -> Client:
    """A client for this command; tests put their own maker into the context."""
    return cast("Callable[[], Client]", ctx.obj or Client)()


def find_job(client: Client, reference: str) -> JobResource:
    """The job with this id, the only one whose id starts or ends so, or the newest of this name; `last` is the newest.

    Raises:
        NotFoundError: there is none.
        UsageError: several ids start or end so.
    """
    reference = reference.strip()
    if reference == "last":
        for job in client.jobs(limit=1):
            return job.resource
        raise NotFoundError("there is no job yet; try: trainyard submit digits_ddp --watch")
    try:
        return client.job(reference).resource
    except NotFoundError:
        newest = client.jobs(limit=SEARCH_LIMIT) if len(reference) >= _SHORTEST else ()
        matches = [job.resource for job in newest if is_abbreviation(reference, job.id)]
        matches = matches or _named(client, reference)
        if not matches:
            raise
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} jobs have ids like {reference!r}; use a longer part")
    return matches[0]


def _named(client: Client, name: str) -> list[JobResource]:
    """The newest job of this name; which one that is is said."""
    newest = [job.resource for job in client.jobs(name=name, limit=2)]
    if newest:
        which = "the newest job of this name" if len(newest) > 1 else "the job of this name"
        print_note(f"{name!r} is {newest[0].id}, {which}")
    return newest[:1]


def find_jobs(client: Client, references: Sequence[str]) -> list[JobResource]:
    """Those that are meant, each once, in the order in which they are named. Raises what `find_job` does."""
    matches = [find_job(client, reference) for reference in references]
    return list({job.id: job for job in matches}.values())


def is_abbreviation(part: str, known: str) -> bool:
    """Whether it is the start, with or without the kind, or the end of a known id, and long enough for that."""
    start, kind = part.lower(), known.partition("_")[0]
    return len(start) >= _SHORTEST and (known.endswith(start) or known.startswith((start, f"{kind}_{start}")))
