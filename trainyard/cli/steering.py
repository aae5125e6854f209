"""`cancel`, `pause`, `resume` and `retry`: what a person wants of jobs that are there."""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from trainyard.cli.failures import UsageError, report
from trainyard.cli.output import emit, say
from trainyard.cli.session import JobsArgument, JsonOption, WatchOption, client_of, find_jobs
from trainyard.cli.watching import watch
from trainyard.client import Client, TrainyardError
from trainyard.contract.wire.jobs import TERMINAL, JobResource

_LOOK_SECONDS = 1.0


def cancel(
    ctx: typer.Context,
    job_ids: JobsArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing of them runs any more.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs: each, once all are found; the exit code is that of the first that could not be.

    Example: trainyard cancel last --wait
    """

    def ask(client: Client, job: JobResource) -> tuple[JobResource, str]:
        job = client.cancel(job.id)
        if wait:
            job = client.wait(job.id)
        return job, "" if job.status == "cancelled" else "cancellation asked for; it is "

    _each(ctx, job_ids, ask, as_json=as_json)


def pause(
    ctx: typer.Context,
    job_ids: JobsArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when their places are given back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have jobs save a checkpoint and give their places back; `resume` goes on from there.

    Example: trainyard pause last --wait
    """

    def ask(client: Client, job: JobResource) -> tuple[JobResource, str]:
        job = client.pause(job.id)
        while wait and job.status not in {"paused", *TERMINAL}:
            time.sleep(_LOOK_SECONDS)
            job = client.job(job.id).resource
        return job, "" if job.status == "paused" else "a pause asked for; it is "

    _each(ctx, job_ids, ask, as_json=as_json)


def resume(ctx: typer.Context, job_ids: JobsArgument, follow: WatchOption = False, as_json: JsonOption = False) -> None:
    """Go on with paused jobs, from their last checkpoints.

    Example: trainyard resume last --watch
    """

    def ask(client: Client, job: JobResource) -> tuple[JobResource, str]:
        return client.resume(job.id), "to go on; it is "

    _each(ctx, job_ids, ask, follow=follow, as_json=as_json)


def retry(
    ctx: typer.Context,
    job_ids: JobsArgument,
    scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Drop what they have saved and reported, and begin again.")
    ] = False,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run failed or cancelled jobs again, from their last checkpoints.

    Example: trainyard retry last --from-scratch
    """
    start = "scratch" if scratch else "checkpoint"
    _each(ctx, job_ids, lambda client, job: (client.retry(job.id, start=start), ""), follow=follow, as_json=as_json)


def _each(
    ctx: typer.Context,
    job_ids: list[str],
    ask: Callable[[Client, JobResource], tuple[JobResource, str]],
    *,
    follow: bool = False,
    as_json: bool,
) -> None:
    """Ask it of each job, and say what each is then; `follow` one to its end."""
    if follow and len(job_ids) > 1:
        raise UsageError("--watch follows one job; name one, or leave it out")
    codes = []
    with client_of(ctx) as client:
        for found in find_jobs(client, job_ids):
            try:
                job, heard = ask(client, found)
            except TrainyardError as error:
                codes.append(report(error))
                continue
            if as_json:
                emit(job)
            else:
                say(f"job {job.id}: {heard}{job.status}: {job.status_message}")
            if follow:
                codes.append(watch(client, job, as_json=as_json, after=job.sequence))
    raise typer.Exit(codes[0] if codes else 0)
