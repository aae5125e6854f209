"""The application: all commands of `trainyard`."""

from collections.abc import Callable
from typing import Annotated

import typer

from trainyard import __version__
from trainyard.cli import (
    artifacts,
    audit,
    checkpoints,
    cluster,
    compare,
    control,
    doctor,
    edit,
    export,
    files,
    generate,
    history,
    job_list,
    jobs,
    login,
    logs,
    maintenance,
    metrics,
    models,
    open_page,
    orphans,
    plan,
    run,
    samples,
    secrets,
    serve,
    shell,
    submit,
    sweep,
    tensorboard,
    tokens,
    webhooks,
)
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


_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Train": {
        "run": run.run,
        "submit": submit.submit,
        "plan": plan.plan,
        "sweep": sweep.sweep,
        "fork": checkpoints.fork,
        "templates": submit.templates,
        "files": files.app,
        "secrets": secrets.app,
    },
    "Inspect": {
        "list": job_list.list_jobs,
        "show": jobs.show,
        "watch": submit.watch_command,
        "logs": logs.logs,
        "metrics": metrics.metrics,
        "compare": compare.compare,
        "views": edit.views,
        "sweeps": sweep.sweeps,
        "events": history.events,
        "attempts": history.attempts,
        "script": history.script,
        "open": open_page.open_page,
        "tensorboard": tensorboard.tensorboard,
        "profile": jobs.profile,
        "shell": shell.shell,
        "exec": shell.execute,
    },
    "Control": {
        "cancel": control.cancel,
        "pause": control.pause,
        "resume": control.resume,
        "retry": control.retry,
        "sweep-cancel": sweep.sweep_cancel,
        "delete": checkpoints.delete,
        "tag": edit.tag,
        "note": edit.note,
        "rename": edit.rename,
        "archive": edit.archive,
    },
    "Results": {
        "checkpoints": checkpoints.checkpoints,
        "download": checkpoints.download,
        "export": export.export,
        "generate": generate.generate,
        "models": models.app,
        "samples": samples.samples,
        "artifacts": artifacts.artifacts,
        "usage": checkpoints.usage,
    },
    "Sign in": {
        "login": login.login,
        "logout": login.logout,
    },
    "Run the service": {
        "serve": serve.serve,
        "doctor": doctor.doctor,
        "cluster": cluster.cluster,
        "tokens": tokens.app,
        "webhooks": webhooks.app,
        "audit": audit.audit,
        "maintenance": maintenance.app,
        "resolve": control.resolve,
        "orphans": orphans.orphans,
    },
}
for panel, commands in _COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            # What follows the program of `run` belongs to the program.
            settings = {"allow_interspersed_args": False} if command is run.run else None
            app.command(name, rich_help_panel=panel, context_settings=settings)(command)
