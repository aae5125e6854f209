"""`samples`: print the texts that a job's model generated at an evaluation."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.output import print_json, print_line, print_text


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
