"""What commands share: the client of this invocation, and finding the job that a person means."""

from collections.abc import Callable
from typing import Annotated, cast

import typer

from trainyard.cli.failures import UsageError
from trainyard.client import Client, NotFoundError
from trainyard.contract.resources import JobResource

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Id, unique start or end of one (4 characters), a name (its newest job), or `last`."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line.")]

_SHORTEST = 4
_LOOKED_AT = 2000
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
    if reference == "last":
        for job in client.jobs(limit=1):
            return job
        raise NotFoundError("there is no job yet")
    try:
        return client.job(reference)
    except NotFoundError:
        newest = client.jobs(limit=_LOOKED_AT) if len(reference) >= _SHORTEST else ()
        matches = [job for job in newest if _abbreviates(reference.lower(), job.id)]
        matches = matches or list(client.jobs(name=reference, limit=1))
        if not matches:
            raise
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} jobs have ids like {reference!r}; give more of it")
    return matches[0]


def _abbreviates(part: str, job_id: str) -> bool:
    return job_id.endswith(part) or job_id.startswith((part, f"job_{part}"))
