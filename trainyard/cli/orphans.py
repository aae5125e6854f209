"""`trainyard orphans`: scheduler entries and run directories that no job names."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.errors import UsageError
from trainyard.cli.output import print_json, print_line, print_list
from trainyard.client import Client
from trainyard.contract.wire.orphans import OrphanResource


def orphans(
    ctx: typer.Context,
    cancel: Annotated[str | None, typer.Option(metavar="ID", help="Remove it from the scheduler's queue.")] = None,
    adopt: Annotated[str | None, typer.Option(metavar="ID", help="Make a job of yours from its run directory.")] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="With --adopt: the user to whom the job belongs.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List queue entries and run directories without a job, such as after a restore. Requires an administrator's token.

    Example: trainyard orphans
    """
    if cancel is not None and adopt is not None:
        raise UsageError("use only one of --cancel ID and --adopt ID")
    if owner is not None and adopt is None:
        raise UsageError("--owner USER needs --adopt ID")
    with make_client(ctx) as client:
        if cancel is None and adopt is None:
            listed = client.orphans()
        else:
            action = "cancel" if cancel is not None else "adopt"
            resolved = client.resolve_orphan(_orphan_id(client, cancel or adopt or ""), action, owner=owner)
            print_json(resolved) if as_json else print_line(f"{resolved.id}: requested: {resolved.requested}")
            return
    headings = ("ID", "NAME", "BY", "SCHEDULER ID", "STATE", "OBSERVED", "REQUESTED", "FOLDER")
    print_list(listed, headings, _row, as_json=as_json, empty_message="no orphans", optional=("FOLDER",))


def _orphan_id(client: Client, given: str) -> str:
    """Return the orphan's id, which may be given as its scheduler id, such as Slurm's job number."""
    if not given.isdecimal():
        return given
    return next((orphan.id for orphan in client.orphans() if orphan.scheduler_id == given), given)


def _row(orphan: OrphanResource) -> tuple[str, ...]:
    requested = orphan.requested or "-"
    return (
        orphan.id,
        orphan.name or "-",
        orphan.created_by or "-",
        orphan.scheduler_id or "-",
        orphan.state or "not in the queue",
        f"{orphan.first_observed_at:%Y-%m-%d %H:%M:%S}Z",
        f"failed: {orphan.message}" if orphan.message else requested,
        orphan.folder or "-",
    )
