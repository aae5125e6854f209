"""`serve`: replace this process by the service, which the command line does not import."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.errors import UsageError
from trainyard.cli.service_program import service_command, service_problem


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for the database and the admin token.")] = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs and checkpoints; on Slurm it must be shared by all nodes.")
    ] = None,
    api_only: Annotated[
        bool,
        typer.Option(
            "--api-only", help="Serve the API only, next to another `serve` that runs the jobs; needs Postgres."
        ),
    ] = False,
) -> None:
    """Run the service on this machine. All TRAINYARD_* settings apply; the options override the most common ones.

    Example: trainyard serve --port 8470
    """
    if problem := service_problem():
        raise UsageError(problem)
    given = {
        "TRAINYARD_HOST": host,
        "TRAINYARD_PORT": port,
        "TRAINYARD_STATE_DIR": state_dir and state_dir.absolute(),
        "TRAINYARD_RUNS_DIR": runs_dir and runs_dir.absolute(),
        "TRAINYARD_RECONCILE": "false" if api_only else None,
    }
    environment = os.environ | {key: str(value) for key, value in given.items() if value is not None}
    sys.stdout.flush()
    os.execve(sys.executable, service_command("serve"), environment)  # noqa: S606 (no shell meant)
