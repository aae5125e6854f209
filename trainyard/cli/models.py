"""`trainyard models`: names for models of jobs, with versions and aliases."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.completion import complete_model
from trainyard.cli.confirm import confirm_deletion
from trainyard.cli.errors import UsageError, show_help
from trainyard.cli.output import format_age, print_deleted, print_json, print_line, print_list, print_table
from trainyard.contract.wire.models import ModelDetail, ModelVersionResource

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)
ModelArgument = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=complete_model, help="Name of the registered model.")
]
_SHOWN_METRICS = 3


@app.command("list")
def list_models(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the registered models.

    Example: trainyard models list
    """
    with make_client(ctx) as client:
        listed = list(client.models())
    print_list(
        listed,
        ("NAME", "LATEST", "ALIASES", "BY", "CHANGED"),
        lambda model: (
            model.name,
            str(model.latest_version or "-"),
            _aliases(model.aliases),
            model.created_by,
            format_age(model.updated_at),
        ),
        as_json=as_json,
        empty_message="there is no registered model; register one with: trainyard models register NAME JOB",
        optional=("BY", "CHANGED"),
    )


@app.command("show")
def show(ctx: typer.Context, name: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a registered model with its versions: which job, data and base model each comes from.

    Example: trainyard models show chat
    """
    with make_client(ctx) as client:
        model = client.model(name)
    if as_json:
        print_json(model)
    else:
        _print_model(model)


@app.command("register")
def register(
    ctx: typer.Context,
    name: ModelArgument,
    job: JobArgument,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|latest|STEP", help="A checkpoint of the job instead of its export.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="ALIAS", help="Let this alias name the version; can be repeated.")
    ] = None,
    description: Annotated[str | None, typer.Option(help="What the model is for.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Register the model of a job as the next version of NAME. The job cannot be deleted meanwhile.

    Example: trainyard models register chat last --alias prod
    """
    with make_client(ctx) as client:
        job_id = find_job(client, job).id
        version = client.register_model(
            name, job_id, checkpoint=checkpoint, aliases=alias or (), description=description
        )
    if as_json:
        print_json(version)
    else:
        print_line(f"{version.model}@{version.version}")


@app.command("alias")
def set_alias(
    ctx: typer.Context,
    name: ModelArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as prod.")],
    version: Annotated[int | None, typer.Argument(metavar="VERSION", min=1, help="Number of the version.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the alias.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Let an alias name a version, and no other one.

    Example: trainyard models alias chat prod 3
    """
    if (version is None) != delete:
        raise UsageError("name a version, or use --delete")
    with make_client(ctx) as client:
        if version is None:
            client.delete_model_alias(name, alias)
            print_deleted("alias", f"{name}@{alias}", "deleted", as_json=as_json)
            return
        model = client.set_model_alias(name, alias, version)
    if as_json:
        print_json(model)
    else:
        print_line(f"{name}@{alias} is version {version}")


@app.command("delete")
def delete_model(
    ctx: typer.Context,
    name: ModelArgument,
    version: Annotated[int | None, typer.Argument(metavar="VERSION", min=1, help="Delete this version only.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a registered model, or one version. The files belong to the jobs and stay.

    Example: trainyard models delete chat 2
    """
    with make_client(ctx) as client:
        if version is not None:
            client.delete_model_version(name, version)
            print_deleted("model version", f"{name}@{version}", "deleted", as_json=as_json)
            return
        question = f"delete the name {name} with its versions and aliases?"
        if not yes and not as_json and not confirm_deletion(question):
            return
        client.delete_model(name)
        print_deleted("model", name, "deleted", as_json=as_json)


def _print_model(model: ModelDetail) -> None:
    if model.description:
        print_line(model.description)
    metrics = _shown_metrics(model.versions)
    rows = [_version_row(version, metrics) for version in model.versions]
    print_table(("VERSION", "ALIASES", "JOB", "OF", "DATA", "BASE", "METRICS"), rows, optional=("BASE", "METRICS"))


def _version_row(version: ModelVersionResource, metrics: Sequence[str]) -> tuple[str, ...]:
    shown = {key: version.metrics[key] for key in metrics if key in version.metrics}
    return (
        str(version.version),
        " ".join(version.aliases),
        version.job_id,
        "export" if version.checkpoint_id is None else f"step {version.step}",
        data_text(version.data or {}) or "-",
        version.base or "-",
        " ".join(f"{key}={value:.4g}" for key, value in shown.items()) or "-",
    )


def _shown_metrics(versions: Sequence[ModelVersionResource]) -> list[str]:
    """Return the metrics to show, the same for all versions so that they can be compared: the losses, then further
    metrics of evaluations, then of the training."""
    names = {key for version in versions for key in version.metrics}

    def order(name: str) -> tuple[bool, bool, bool, str]:
        return (
            name not in ("eval/loss", "train/loss"),
            not name.startswith("eval/"),
            not name.startswith("train/"),
            name,
        )

    return sorted(names, key=order)[:_SHOWN_METRICS]


def data_text(data: Mapping[str, Any]) -> str:
    """Return the names in the `data` of a spec: paths, ids of uploaded files, or a builtin data set."""
    if isinstance(sources := data.get("sources"), list) and sources:
        return ", ".join(text for source in sources if isinstance(source, Mapping) and (text := data_text(source)))
    named = data.get("path") or data.get("id") or data.get("name") or ""
    return ", ".join(map(str, named)) if isinstance(named, list) else str(named)


def _aliases(aliases: dict[str, int]) -> str:
    return " ".join(f"{alias}={version}" for alias, version in sorted(aliases.items()))
