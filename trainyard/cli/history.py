"""`events`, `attempts`, `script` and `samples`: a job's history, submitted batch scripts and generated texts."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.output import (
    format_age,
    format_duration,
    print_json,
    print_json_lines,
    print_line,
    print_list,
    print_text,
)
from trainyard.contract.node_lists import shorten
from trainyard.contract.wire.jobs import AttemptResource, EventResource


def events(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """List a job's events, oldest first.

    Example: trainyard events last
    """
    with make_client(ctx) as client:
        result = client.events(find_job(client, job_id).id)
        if as_json:
            print_json_lines(result)
            return
        for event in result:
            print_line(f"{event.created_at:%Y-%m-%d %H:%M:%S}Z  {event.type:<26}  {_text(event)}")


def _text(event: EventResource) -> str:
    if event.type == "status":
        return f"{event.data.get('status')}: {event.message}"
    return event.message if event.level == "info" else f"{event.level}: {event.message}"


def attempts(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """List a job's attempts: where each ran, and how it ended.

    Example: trainyard attempts last
    """
    with make_client(ctx) as client:
        result = client.attempts(find_job(client, job_id).id)
    headings = ("ATTEMPT", "SCHEDULER ID", "NODES", "FROM STEP", "STARTED", "RUNTIME", "EXIT REASON", "EVIDENCE")
    print_list(
        result,
        headings,
        _attempt_row,
        as_json=as_json,
        empty_message="no attempt yet",
        optional=("FROM STEP", "STARTED", "EVIDENCE"),
    )


def _attempt_row(attempt: AttemptResource) -> tuple[str, ...]:
    began, ended = attempt.started_at, attempt.ended_at
    took = format_duration((ended - began).total_seconds()) if began and ended else "-"
    step = "-" if attempt.resumed_from_step is None else str(attempt.resumed_from_step)
    started, how = format_age(began) if began else "-", attempt.exit_reason or "-"
    evidence = "; ".join(text for text in (attempt.scheduler_end, attempt.failure) if text) or "-"
    nodes = shorten(attempt.nodes) or "-"
    return str(attempt.number), attempt.scheduler_id or "-", nodes, step, started, took, how, evidence


def script(
    ctx: typer.Context,
    job_id: JobArgument,
    attempt: Annotated[int | None, typer.Option(min=1, help="Number of the attempt; default: the newest.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the batch script as it was submitted.

    Example: trainyard script last
    """
    with make_client(ctx) as client:
        result = client.script(find_job(client, job_id).id, attempt=attempt)
    if as_json:
        print_json(result)
    else:
        print_text(result.script if result.script.endswith("\n") else f"{result.script}\n")


def samples(
    ctx: typer.Context,
    job_id: JobArgument,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the evaluation. Default: the last one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the texts that a job's model generated at an evaluation (evaluation.samples).

    Example: trainyard samples last --step 100
    """
    with make_client(ctx) as client:
        record = client.samples(find_job(client, job_id).id, step)
    if as_json:
        print_json(record)
        return
    print_line(f"step {record.step}")
    for sample in record.samples:
        end = "" if sample.ended else " (cut)"
        print_line("")
        print_line(f"--- {sample.tokens} token{'s' * (sample.tokens != 1)}{end}")
        print_text(f"{sample.prompt}{sample.text}\n")
