"""The application: all commands of `trainyard`."""

from typing import Annotated

import typer

from trainyard import __version__
from trainyard.cli.errors import EXIT_CODES, CommandGroup, show_help

app = typer.Typer(
    name="trainyard",
    cls=CommandGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(requested: bool) -> None:
    if requested:
        print(f"trainyard {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    ctx: typer.Context,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Distributed PyTorch training jobs, from a spec to a checkpoint.

    The service is at TRAINYARD_URL (default http://127.0.0.1:8470); TRAINYARD_TOKEN is your API token, which is
    not needed on the service's own machine, or after `trainyard login`.
    """
    show_help(ctx)
