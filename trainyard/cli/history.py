"""`events` and `script`: what happened to a job, and what was handed to the scheduler."""

import typer

from trainyard.cli.output import emit, emit_all, say, write
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job
from trainyard.contract.resources import EventResource


def events(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show what happened to a job, oldest first.

    Example: trainyard events last
    """
    with client_of(ctx) as client:
        found = client.events(find_job(client, job_id).id)
        if as_json:
            emit_all(found)
            return
        for event in found:
            say(f"{event.created_at:%Y-%m-%d %H:%M:%S}Z  {event.type:<20}  {_text(event)}")


def _text(event: EventResource) -> str:
    if event.type == "status":
        return f"{event.data.get('status')}: {event.message}"
    return event.message if event.level == "info" else f"{event.level}: {event.message}"


def script(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show the batch script as it was submitted.

    Example: trainyard script last
    """
    with client_of(ctx) as client:
        found = client.script(find_job(client, job_id).id)
    if as_json:
        emit(found)
    else:
        write(found.script if found.script.endswith("\n") else f"{found.script}\n")
