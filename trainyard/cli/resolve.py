"""`resolve`: what an operator has found out about a job that the service cannot settle by itself."""

from typing import Annotated

import typer

from trainyard.cli.failures import UsageError
from trainyard.cli.output import emit, say
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job


def resolve(
    ctx: typer.Context,
    job_id: JobArgument,
    adopt: Annotated[
        str | None, typer.Option(metavar="ID", help="The scheduler has it under this id; watch that.")
    ] = None,
    resubmit: Annotated[bool, typer.Option("--resubmit", help="Nothing of it runs; submit it again.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Nothing of it runs; end it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Settle a job that is lost, or whose submission had no clear answer. Takes an administrator's token.

    Example: trainyard resolve last --resubmit
    """
    chosen = [name for name, given in (("adopt", adopt), ("resubmit", resubmit), ("give_up", give_up)) if given]
    if len(chosen) != 1:
        raise UsageError("say one of --adopt ID, --resubmit and --give-up")
    with client_of(ctx) as client:
        job = client.resolve(find_job(client, job_id).id, chosen[0], adopt)
    if as_json:
        emit(job)
    else:
        say(f"job {job.id}: {job.status}: {job.status_message}")
