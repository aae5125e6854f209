"""The ready-made specs of `jobs_templates/`: list, load, fill."""

from importlib import import_module
from pathlib import Path
from typing import Any

from trainyard.contract.base import Resource
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.yaml_loader import load_yaml


class Template(Resource):
    """A preset, ready to POST."""

    object: str = "template"
    name: str
    description: str
    spec: dict[str, Any]


def code_folder() -> Path:
    """The code that presets of the tasks `custom` and `script` run, to be uploaded like a user's own."""
    return _folder() / "code"


class UnknownTemplateError(LookupError):
    """No preset of that name; the message lists those there are."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no template {name!r}; there are: {', '.join(template_names())}")


def template_names() -> list[str]:
    """Every preset's name, sorted."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def _folder() -> Path:
    """`jobs_templates` holds YAML and no code, so it is a namespace package, which importlib.resources cannot read
    when it is installed editable."""
    folders = (Path(folder) for folder in import_module("jobs_templates").__path__)
    return next(folder for folder in folders if folder.is_dir())


def load_template(name: str) -> Template:
    """One preset, validated. Its description is the file's leading comment."""
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
        UnknownTemplateError: no such preset.
        SpecError: the result is not a spec.
    """
    document = dict(load_template(name).spec)
    for path, value in overrides.items():
        set_path(document, path, value)
    parse_spec(document)
    return document


def set_path(document: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c` in nested plain data, making the sections on the way."""
    *sections, last = path.split(".")
    for section in sections:
        inner = document.get(section)
        document[section] = dict(inner) if isinstance(inner, dict) else {}
        document = document[section]
    document[last] = value
