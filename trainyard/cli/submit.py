"""`submit`, `watch` and `templates`."""

from typing import Annotated

import typer
import yaml

from trainyard.cli.arguments import (
    AfterOption,
    ForceOption,
    JobArgument,
    JsonOption,
    KeyOption,
    SpecArgument,
    WatchOption,
    find_job,
    find_prerequisites,
    make_client,
    print_submitted,
)
from trainyard.cli.completion import complete_preset
from trainyard.cli.output import (
    one_line,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_table,
    print_text,
)
from trainyard.cli.specs import CodeOption, read_spec, upload_code
from trainyard.cli.watch import watch
from trainyard.client import Client
from trainyard.contract.kinds.precisions import precision_kind
from trainyard.contract.spec.templates import Template
from trainyard.contract.wire.jobs import JobResource


def submit(
    ctx: typer.Context,
    source: SpecArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one field, as in optimizer.lr=1e-3; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Display name of the job.")] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs, or of CPU processes on a machine without GPUs.")
    ] = None,
    after: AfterOption = None,
    follow: WatchOption = False,
    code: CodeOption = None,
    idempotency_key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a training job.

    Example: trainyard submit spec.yaml --set optimizer.lr=1e-4 --set gpus=4 --watch
    """
    with make_client(ctx) as client:
        document = read_spec(client, source, settings or [])
        document |= {"name": name} if name is not None else {}
        document |= {"gpus": gpus} if gpus is not None else {}
        document |= {"after": find_prerequisites(client, after)} if after else {}
        upload_code(client, document, source, code)
        job = client.submit(document, idempotency_key=idempotency_key, force=force).resource
        if as_json:
            print_json(job)
        else:
            print_submitted(client, job)
            for warning in _warnings(client, job):
                print_error(f"note: {warning}")
        if follow:
            raise typer.Exit(watch(client, job, as_json=as_json))
        if not as_json:
            print_line(f"follow it with: trainyard watch {job.id}")


def _warnings(client: Client, job: JobResource) -> list[str]:
    """Return the service's warnings about the spec; only specs in fp16 and fp8 can have any."""
    precision = precision_kind(job.spec.get("precision"))
    if not (precision.is_emulated_on_cpus or precision.converts_linear_layers):
        return []
    return [event.message for event in client.events(job.id) if event.type == "spec_warning"]


def watch_command(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Follow a job until it ends: status, progress, loss, throughput. Ctrl-C does not stop the job.

    Example: trainyard watch last
    """
    with make_client(ctx) as client:
        raise typer.Exit(watch(client, find_job(client, job_id), as_json=as_json))


def templates(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="PRESET", autocompletion=complete_preset, help="Print this preset as YAML.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets, or print one as YAML.

    Example: trainyard templates digits_ddp > my.yaml
    """
    with make_client(ctx) as client:
        if name is not None:
            preset = client.template(name)
            if as_json:
                print_json(preset)
            else:
                print_text(as_yaml(preset))
            return
        presets = client.templates()
    if as_json:
        print_json_lines(presets)
    else:
        print_table(("NAME", "DESCRIPTION"), [(preset.name, preset.description) for preset in presets])


def as_yaml(template: Template) -> str:
    """Return a template as a YAML file for `trainyard submit`, with each small section on a single line."""
    spec = yaml.safe_dump(template.spec, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000)
    return f"# {one_line(template.description)}\n{spec}"
