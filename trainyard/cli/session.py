"""What commands share: the client of this invocation, and finding the job that a person means."""

from collections.abc import Callable, Sequence
from typing import Annotated, cast

import typer

from trainyard.cli.completing import complete_job, complete_spec, complete_sweep
from trainyard.cli.failures import UsageError, note
from trainyard.client import Client, NotFoundError
from trainyard.contract.wire.jobs import JobResource

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        autocompletion=complete_job,
        help="Id, unique start or end of one (4 characters), a name (its newest job), or `last`.",
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        autocompletion=complete_job,
        help="Each an id, a unique start or end of one (4 characters), a name (its newest job), or `last`.",
    ),
]
SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", autocompletion=complete_spec, help="A YAML or JSON file, a preset's name, or - for stdin."
    ),
]
SweepOption = Annotated[
    str | None, typer.Option(autocompletion=complete_sweep, help="All jobs of this sweep; `last` is the newest one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Submit even what the planner says cannot fit the memory.")]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", help="A word of yours: the same command, called again with it, submits nothing twice."
    ),
]

_SHORTEST = 4
LOOKED_AT = 2000
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
        newest = client.jobs(limit=LOOKED_AT) if len(reference) >= _SHORTEST else ()
        matches = [job.resource for job in newest if abbreviates(reference, job.id)]
        matches = matches or _named(client, reference)
        if not matches:
            raise
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} jobs have ids like {reference!r}; give more of it")
    return matches[0]


def _named(client: Client, name: str) -> list[JobResource]:
    """The newest job of this name; which one that is is said."""
    newest = [job.resource for job in client.jobs(name=name, limit=2)]
    if newest:
        which = "the newest job of this name" if len(newest) > 1 else "the job of this name"
        note(f"{name!r} is {newest[0].id}, {which}")
    return newest[:1]


def find_jobs(client: Client, references: Sequence[str]) -> list[JobResource]:
    """Those that are meant, each once, in the order in which they are named. Raises what `find_job` does."""
    found = [find_job(client, reference) for reference in references]
    return list({job.id: job for job in found}.values())


def abbreviates(part: str, known: str) -> bool:
    """Whether it is the start, with or without the kind, or the end of a known id, and long enough for that."""
    start, kind = part.lower(), known.partition("_")[0]
    return len(start) >= _SHORTEST and (known.endswith(start) or known.startswith((start, f"{kind}_{start}")))
