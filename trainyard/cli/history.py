"""`events`, `attempts` and `script`: what happened to a job, and what was handed to the scheduler."""

from typing import Annotated

import typer

from trainyard.cli.output import age, duration, emit, emit_all, say, show_all, write
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job
from trainyard.contract.wire.jobs import AttemptResource, EventResource


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


def attempts(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """List each time that a job was handed to the scheduler: where it ran, and how it ended.

    Example: trainyard attempts last
    """
    with client_of(ctx) as client:
        found = client.attempts(find_job(client, job_id).id)
    headings = ("ATTEMPT", "SCHEDULER'S", "NODES", "FROM STEP", "STARTED", "TOOK", "ENDED")
    show_all(found, headings, _tried, as_json=as_json, none="no attempt yet", spare=("FROM STEP", "STARTED"))


def _tried(attempt: AttemptResource) -> tuple[str, ...]:
    began, ended = attempt.started_at, attempt.ended_at
    took = duration((ended - began).total_seconds()) if began and ended else "-"
    step = "-" if attempt.resumed_from_step is None else str(attempt.resumed_from_step)
    started, how = age(began) if began else "-", attempt.exit_reason or "-"
    return str(attempt.number), attempt.scheduler_id or "-", ", ".join(attempt.nodes) or "-", step, started, took, how


def script(
    ctx: typer.Context,
    job_id: JobArgument,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Its number, as `trainyard attempts` has it; default: the newest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the batch script as it was submitted.

    Example: trainyard script last
    """
    with client_of(ctx) as client:
        found = client.script(find_job(client, job_id).id, attempt=attempt)
    if as_json:
        emit(found)
    else:
        write(found.script if found.script.endswith("\n") else f"{found.script}\n")
