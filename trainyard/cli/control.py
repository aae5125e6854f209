"""`cancel`, `pause`, `resume`, `retry` and `resolve`: change the desired state of jobs."""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from trainyard.cli.arguments import JobArgument, JobsArgument, JsonOption, WatchOption, find_job, find_jobs, make_client
from trainyard.cli.errors import UsageError, report_error
from trainyard.cli.output import print_json, print_line
from trainyard.cli.watch import watch
from trainyard.client import Client, TrainyardError
from trainyard.contract.wire.jobs import TERMINAL, JobResource

_POLL_SECONDS = 1.0


def cancel(
    ctx: typer.Context,
    job_ids: JobsArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs have ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs. The exit code is that of the first failure.

    Example: trainyard cancel last --wait
    """

    def request(client: Client, job: JobResource) -> tuple[JobResource, str]:
        job = client.cancel(job.id)
        if wait:
            job = client.wait(job.id)
        return job, "" if job.status == "cancelled" else "cancellation requested; status: "

    _for_each_job(ctx, job_ids, request, as_json=as_json)


def pause(
    ctx: typer.Context,
    job_ids: JobsArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs are paused.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Pause jobs: each writes a checkpoint and releases its resources; `resume` continues it.

    Example: trainyard pause last --wait
    """

    def request(client: Client, job: JobResource) -> tuple[JobResource, str]:
        job = client.pause(job.id)
        while wait and job.status not in {"paused", *TERMINAL}:
            time.sleep(_POLL_SECONDS)
            job = client.job(job.id).resource
        return job, "" if job.status == "paused" else "pause requested; status: "

    _for_each_job(ctx, job_ids, request, as_json=as_json)


def resume(ctx: typer.Context, job_ids: JobsArgument, follow: WatchOption = False, as_json: JsonOption = False) -> None:
    """Continue paused jobs from their last checkpoints.

    Example: trainyard resume last --watch
    """

    def request(client: Client, job: JobResource) -> tuple[JobResource, str]:
        return client.resume(job.id), "resume requested; status: "

    _for_each_job(ctx, job_ids, request, follow=follow, as_json=as_json)


def retry(
    ctx: typer.Context,
    job_ids: JobsArgument,
    scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Discard checkpoints and metrics, and start from the beginning.")
    ] = False,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run failed or cancelled jobs again, from their last checkpoints.

    Example: trainyard retry last --from-scratch
    """
    start = "scratch" if scratch else "checkpoint"
    _for_each_job(
        ctx, job_ids, lambda client, job: (client.retry(job.id, start=start), ""), follow=follow, as_json=as_json
    )


def resolve(
    ctx: typer.Context,
    job_id: JobArgument,
    adopt: Annotated[str | None, typer.Option(metavar="ID", help="The scheduler runs the job under this id.")] = None,
    resubmit: Annotated[bool, typer.Option("--resubmit", help="The job is not running; submit it again.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="The job is not running; mark it as ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Settle a job that is lost or whose submission is unconfirmed. Requires an administrator's token.

    Example: trainyard resolve last --resubmit
    """
    chosen = [name for name, given in (("adopt", adopt), ("resubmit", resubmit), ("give_up", give_up)) if given]
    if len(chosen) != 1:
        raise UsageError("use exactly one of --adopt ID, --resubmit and --give-up")
    with make_client(ctx) as client:
        job = client.resolve(find_job(client, job_id).id, chosen[0], adopt)
    if as_json:
        print_json(job)
    else:
        print_line(f"job {job.id}: {job.status}: {job.status_message}")


def _for_each_job(
    ctx: typer.Context,
    job_ids: list[str],
    request: Callable[[Client, JobResource], tuple[JobResource, str]],
    *,
    follow: bool = False,
    as_json: bool,
) -> None:
    """Send a request for each job and print its new status; with `follow`, watch the job until it has ended."""
    if follow and len(job_ids) > 1:
        raise UsageError("--watch follows one job; name only one")
    codes = []
    with make_client(ctx) as client:
        for target in find_jobs(client, job_ids):
            try:
                job, prefix = request(client, target)
            except TrainyardError as error:
                codes.append(report_error(error))
                continue
            if as_json:
                print_json(job)
            else:
                print_line(f"job {job.id}: {prefix}{job.status}: {job.status_message}")
            if follow:
                codes.append(watch(client, job, as_json=as_json, after=job.sequence))
    raise typer.Exit(codes[0] if codes else 0)
