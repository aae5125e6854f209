"""The presets in `jobs_templates/`: list, load and fill."""

from importlib import import_module
from pathlib import Path
from typing import Any

from trainyard.contract.base import Resource, example
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.yaml_loader import load_yaml


class Template(Resource):
    """A preset and its description."""

    model_config = example(object="template", name="mlp_parity", description="A small net.")

    object: str = "template"
    name: str
    description: str
    spec: dict[str, Any]


def code_folder() -> Path:
    """Return the folder with the code of the presets for `custom` and `script`; it is uploaded like a user's code."""
    return _folder() / "code"


class UnknownTemplateError(LookupError):
    """There is no preset with this name; the message lists the presets."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no template {name!r}; there are: {', '.join(template_names())}")


def template_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def _folder() -> Path:
    """`jobs_templates` holds YAML and no code, so it is a namespace package, which importlib.resources cannot read
    when it is installed editable."""
    folders = (Path(folder) for folder in import_module("jobs_templates").__path__)
    return next(folder for folder in folders if folder.is_dir())


def load_template(name: str) -> Template:
    """Return a validated preset. Its description is the leading comment of the file."""
    if name not in template_names():
        raise UnknownTemplateError(name)
    text = (_folder() / f"{name}.yaml").read_text()
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    document = load_yaml(text)
    parse_spec(document)
    return Template(name=name, description=" ".join(comment), spec=document)


def fill_template(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """A preset with some fields replaced; `overrides` maps dotted paths to values.

    Raises:
        UnknownTemplateError: there is no such preset.
        SpecError: the result is not a spec.
    """
    document = dict(load_template(name).spec)
    for path, value in overrides.items():
        set_path(document, path, value)
    parse_spec(document)
    return document


def set_path(document: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c` in nested plain data, and create missing sections."""
    *sections, last = path.split(".")
    for section in sections:
        inner = document.get(section)
        document[section] = dict(inner) if isinstance(inner, dict) else {}
        document = document[section]
    document[last] = value
