"""`cancel`, `pause`, `resume`, `retry` and `resolve`: change the desired state of jobs."""

import time
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from trainyard.cli.arguments import (
    JOBS_HELP,
    JobArgument,
    JobsArgument,
    JsonOption,
    WatchOption,
    find_job,
    find_jobs,
    find_sweep,
    make_client,
)
from trainyard.cli.completion import complete_job, complete_sweep
from trainyard.cli.errors import FAILED, UsageError, report_error
from trainyard.cli.output import print_json, print_line
from trainyard.cli.specs import apply_settings
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
    """Cancel jobs. The first failure determines the exit code.

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


_SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Change a field of `resources`, as in resources.partition=long; repeatable."
    ),
]


def _resources(settings: list[str] | None) -> dict[str, Any]:
    """Return the changes of `--set`. Raises UsageError: a setting is of another field."""
    document = apply_settings({}, settings or ())
    if others := sorted(document.keys() - {"resources"}):
        message = (
            f"--set {others[0]}: only `resources` of a job can change; `trainyard fork` makes a job with other fields"
        )
        raise UsageError(message)
    resources: dict[str, Any] = document.get("resources", {})
    return resources


def resume(
    ctx: typer.Context,
    job_ids: JobsArgument,
    settings: _SetOption = None,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue paused jobs from their last checkpoints.

    Example: trainyard resume last --watch
    In another partition: trainyard resume last --set resources.partition=long
    """
    resources = _resources(settings)

    def request(client: Client, job: JobResource) -> tuple[JobResource, str]:
        return client.resume(job.id, resources=resources), "resume requested; status: "

    _for_each_job(ctx, job_ids, request, follow=follow, as_json=as_json)


def retry(
    ctx: typer.Context,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="JOB", autocompletion=complete_job, help=JOBS_HELP)
    ] = None,
    scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Discard checkpoints and metrics, and start from the beginning.")
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="SWEEP", autocompletion=complete_sweep, help="Members of this sweep; with --failed."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed members of the sweep.")] = False,
    settings: _SetOption = None,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run failed or cancelled jobs again, from their last checkpoints. With --set, submit waiting jobs anew too.

    Example: trainyard retry last --from-scratch
    In another partition: trainyard retry last --set resources.partition=long
    All failed members of a sweep: trainyard retry --sweep last --failed
    """
    if (sweep is not None) != failed or (sweep is not None) == bool(job_ids):
        raise UsageError("name jobs, or use --sweep SWEEP --failed for all failed members of a sweep")
    if sweep is not None:
        with make_client(ctx) as client:
            members = find_sweep(client, sweep).members
        job_ids = [member.job_id for member in members if member.job_id and member.status == "failed"]
        if not job_ids:
            print_line("no member of the sweep has failed")
            return
    start, resources = "scratch" if scratch else "checkpoint", _resources(settings)

    def request(client: Client, job: JobResource) -> tuple[JobResource, str]:
        return client.retry(job.id, start=start, resources=resources), ""

    _for_each_job(ctx, job_ids or [], request, follow=follow, as_json=as_json)


def resolve(
    ctx: typer.Context,
    job_id: JobArgument = "",
    all_lost: Annotated[bool, typer.Option("--all-lost", help="All lost jobs instead of one.")] = False,
    adopt: Annotated[str | None, typer.Option(metavar="ID", help="The scheduler runs the job under this id.")] = None,
    resubmit: Annotated[bool, typer.Option("--resubmit", help="The job is not running; submit it again.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="The job is not running; mark it as ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Settle a job that is lost or whose submission is unconfirmed. Requires an administrator's token.

    Example: trainyard resolve last --resubmit
    """
    if bool(job_id) == all_lost:
        raise UsageError("name one job, or use --all-lost")
    chosen = [name for name, given in (("adopt", adopt), ("resubmit", resubmit), ("give_up", give_up)) if given]
    if len(chosen) != 1:
        raise UsageError("use exactly one of --adopt ID, --resubmit and --give-up")
    if all_lost and adopt:
        raise UsageError("--adopt settles one job; use --resubmit or --give-up with --all-lost")
    if all_lost:
        _resolve_lost(ctx, chosen[0], as_json=as_json)
    with make_client(ctx) as client:
        job = client.resolve(find_job(client, job_id).id, chosen[0], adopt)
    if as_json:
        print_json(job)
    else:
        print_line(f"job {job.id}: {job.status}: {job.status_message}")


def _resolve_lost(ctx: typer.Context, action: str, *, as_json: bool) -> NoReturn:
    """Settle all lost jobs, print the outcome of each, and exit; with 1 if a job could not be resolved."""
    resolved, refused = 0, 0
    with make_client(ctx) as client:
        has_more = True
        while has_more:
            page = client.resolve_lost(action)
            for result in page.data:
                if as_json:
                    print_json(result)
                else:
                    print_line(f"job {result.job_id}: {result.status or 'not resolved'}: {result.message}")
            done = sum(result.resolved for result in page.data)
            resolved, refused = resolved + done, len(page.data) - done
            # Jobs that cannot be resolved remain lost, and are first in the next page too.
            has_more = page.has_more and done > 0
    if not as_json:
        print_line(f"{resolved} lost jobs resolved" + (f", {refused} not resolved" if refused else ""))
    raise typer.Exit(FAILED if refused else 0)


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
