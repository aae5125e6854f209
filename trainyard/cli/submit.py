"""`submit` and `watch`: a spec becomes a job, and the job is followed to its end."""

from typing import Annotated

import typer

from trainyard.cli.output import emit, say
from trainyard.cli.session import (
    ForceOption,
    JobArgument,
    JsonOption,
    KeyOption,
    SpecArgument,
    WatchOption,
    client_of,
    find_job,
)
from trainyard.cli.specs import CodeOption, find_code, read_spec
from trainyard.cli.watching import watch


def submit(
    ctx: typer.Context,
    source: SpecArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one field, as in optimizer.lr=1e-3; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job, for people.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs; processes, on a machine without.")] = None,
    follow: WatchOption = False,
    code: CodeOption = None,
    idempotency_key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a training job.

    Example: trainyard submit spec.yaml --set optimizer.lr=1e-4 --set gpus=4 --watch
    """
    with client_of(ctx) as client:
        document = read_spec(client, source, settings or [])
        document |= {"name": name} if name is not None else {}
        document |= {"gpus": gpus} if gpus is not None else {}
        folder = code or find_code(document, source)
        job = client.submit(document, code=folder, idempotency_key=idempotency_key, force=force).resource
        if as_json:
            emit(job)
        else:
            say(f"job {job.id} ({job.name}) accepted")
        if follow:
            raise typer.Exit(watch(client, job, as_json=as_json))
        if not as_json:
            say(f"follow it with: trainyard watch {job.id}")


def watch_command(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Follow a job to its end: status, progress, loss, throughput. Ctrl-C leaves it running.

    Example: trainyard watch last
    """
    with client_of(ctx) as client:
        raise typer.Exit(watch(client, find_job(client, job_id), as_json=as_json))
