"""`templates`: the presets, and one of them as YAML ready to copy."""

from typing import Annotated

import typer
import yaml

from trainyard.cli.completing import complete_preset
from trainyard.cli.output import emit, emit_all, one_line, table, write
from trainyard.cli.session import JsonOption, client_of
from trainyard.contract.spec.templates import Template


def templates(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="PRESET", autocompletion=complete_preset, help="Print this one as YAML.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets, or print one as a file to edit.

    Example: trainyard templates digits_ddp > my.yaml
    """
    with client_of(ctx) as client:
        if name is not None:
            found = client.template(name)
            if as_json:
                emit(found)
            else:
                write(as_yaml(found))
            return
        presets = client.templates()
    if as_json:
        emit_all(presets)
    else:
        table(("NAME", "DESCRIPTION"), [(preset.name, preset.description) for preset in presets])


def as_yaml(template: Template) -> str:
    """A file that `trainyard submit` takes: small sections on one line, as people write them."""
    spec = yaml.safe_dump(template.spec, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000)
    return f"# {one_line(template.description)}\n{spec}"
