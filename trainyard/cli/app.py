"""The commands, put together."""

from collections.abc import Callable
from typing import Annotated

import typer

from trainyard import __version__
from trainyard.cli import (
    artifacts,
    audit,
    checkpoints,
    cluster,
    history,
    jobs,
    logs,
    metrics,
    plan,
    presets,
    resolve,
    serve,
    steering,
    submit,
    tensorboard,
    tokens,
    webhooks,
)
from trainyard.cli.failures import EXIT_CODES, USAGE, Commands

app = typer.Typer(
    name="trainyard",
    cls=Commands,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trainyard {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    ctx: typer.Context,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Distributed PyTorch training jobs, from a spec to a checkpoint.

    The service is at TRAINYARD_URL (default http://127.0.0.1:8470); TRAINYARD_TOKEN says who you are, and is not
    needed on the service's own machine.
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(USAGE)


_COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serve.serve,
    "submit": submit.submit,
    "plan": plan.plan,
    "list": jobs.list_jobs,
    "show": jobs.show,
    "watch": submit.watch_command,
    "logs": logs.logs,
    "metrics": metrics.metrics,
    "tensorboard": tensorboard.tensorboard,
    "cancel": steering.cancel,
    "pause": steering.pause,
    "resume": steering.resume,
    "retry": steering.retry,
    "profile": jobs.profile,
    "resolve": resolve.resolve,
    "events": history.events,
    "checkpoints": checkpoints.checkpoints,
    "download": checkpoints.download,
    "fork": checkpoints.fork,
    "delete": checkpoints.delete,
    "usage": checkpoints.usage,
    "artifacts": artifacts.artifacts,
    "script": history.script,
    "templates": presets.templates,
    "cluster": cluster.cluster,
    "audit": audit.audit,
}
for name, command in _COMMANDS.items():
    app.command(name)(command)
app.add_typer(tokens.app, name="tokens")
app.add_typer(webhooks.app, name="webhooks")
