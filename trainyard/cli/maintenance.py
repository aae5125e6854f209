"""`trainyard maintenance`: stop submissions to the scheduler while it is being worked on."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.errors import show_help
from trainyard.cli.output import print_json, print_line
from trainyard.contract.wire.cluster import MaintenanceResource

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)


@app.command("on")
def start(
    ctx: typer.Context,
    message: Annotated[str, typer.Option("--message", help="Why, and for how long; shown to all users.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Submit nothing from now on: jobs are accepted and wait, running ones continue. Requires an administrator's token.

    Example: trainyard maintenance on --message "Slurm upgrade until 14:00"
    """
    with make_client(ctx) as client:
        _print(client.set_maintenance(True, message), as_json=as_json)


@app.command("off")
def end(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Submit the waiting jobs. Requires an administrator's token.

    Example: trainyard maintenance off
    """
    with make_client(ctx) as client:
        _print(client.set_maintenance(False), as_json=as_json)


@app.command("status")
def status(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show whether the maintenance mode is on, since when and by whom.

    Example: trainyard maintenance status
    """
    with make_client(ctx) as client:
        _print(client.maintenance(), as_json=as_json)


def _print(mode: MaintenanceResource, *, as_json: bool) -> None:
    if as_json:
        print_json(mode)
    elif mode.active:
        message = f": {mode.message}" if mode.message else ""
        print_line(f"maintenance mode is on since {mode.since:%Y-%m-%d %H:%M}Z by {mode.started_by}{message}")
    else:
        print_line("maintenance mode is off")
