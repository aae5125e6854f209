"""`fix`: submit a job's spec with a change that its failure, or the advice about it, proposes."""

from typing import Annotated

import typer

from trainyard.cli.arguments import (
    ForceOption,
    JobArgument,
    JsonOption,
    WatchOption,
    find_job,
    make_client,
    print_submitted,
)
from trainyard.cli.errors import UsageError
from trainyard.cli.output import print_json, print_line
from trainyard.cli.spec_changes import assignments, fix_lines, fixes_of, print_changes
from trainyard.cli.watch import watch
from trainyard.contract.proposals import spec_text
from trainyard.contract.wire.jobs import Fix, JobResource


def fix(
    ctx: typer.Context,
    job_id: JobArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH=VALUE", help="The fix to submit, as it is listed; without it, list all."),
    ] = None,
    follow: WatchOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the changes that would help a job, or submit its spec with one of them.

    Example: trainyard fix last optimizer.lr=1e-4
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if not settings:
            _list(job, as_json=as_json)
            return
        chosen = _choose(job, settings)
        if not as_json:
            print_line(f"the spec of {job.id} with these changes:")
            print_changes(chosen.changes)
        new_job = client.submit_changes(job.id, chosen.changes, force=force).resource
        if as_json:
            changes = [change.model_dump(mode="json") for change in chosen.changes]
            print_json({"changes": changes, "job": new_job.model_dump(mode="json", by_alias=True)})
        else:
            print_submitted(client, new_job)
        if follow:
            raise typer.Exit(watch(client, new_job, as_json=as_json))


def _list(job: JobResource, *, as_json: bool) -> None:
    fixes = fixes_of(job)
    if as_json:
        print_json({"job_id": job.id, "fixes": [fix.model_dump(mode="json") for fix in fixes]})
        return
    for one in fixes:
        for line in fix_lines(job, one):
            print_line(line)
    if not fixes:
        print_line(f"no change of the spec is known that would help; change it yourself: trainyard fork {job.id} --set")


def _choose(job: JobResource, settings: list[str]) -> Fix:
    """Return the fix that sets exactly these values.

    Raises:
        UsageError: the job has no such fix, or has another one by now.
    """
    named = {path.strip(): text.strip() for path, _, text in (setting.partition("=") for setting in settings)}
    fixes = fixes_of(job)
    match = next((one for one in fixes if _sets(one, named)), None)
    if match is None:
        listed = "; ".join(" ".join(assignments(one)) for one in fixes) or "none"
        raise UsageError(f"{' '.join(settings)} is no fix of job {job.id}; its fixes are: {listed}")
    return match


def _sets(fix: Fix, named: dict[str, str]) -> bool:
    """Return whether a fix sets these fields to the values that these texts mean."""
    return fix.fields.keys() == named.keys() and all(_means(named[path], value) for path, value in fix.fields.items())


def _means(text: str, value: object) -> bool:
    if text == spec_text(value):
        return True
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and float(text) == value
    except ValueError:
        return False
