"""Reads specs from a file, standard input or a preset, and sets fields of them."""

import json
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.cli.errors import UsageError
from trainyard.client import Client, NotFoundError
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.field_types import is_text
from trainyard.contract.spec.templates import code_folder, set_path
from trainyard.contract.spec.training_spec import fields_reset_by
from trainyard.contract.spec.user_code import expected_code_files, is_command, path_in_code, start_folder
from trainyard.contract.spec.yaml_loader import load_yaml

_NO_FIELDS = "the spec must be a mapping of fields, like those of: trainyard templates digits_ddp"
_YAML_POSITION = re.compile(r"^not valid YAML: (line \d+, column \d+: )?")
"""The prefix of a YAML error; it is dropped, because a single value has no useful line number."""

_PLAIN_SCALAR = re.compile(r"""\s*(?!(null|Null|NULL|~)\s*$)[^\s"'\[{]""")
"""A text that is not quoted, a list, a mapping or null. In YAML it would end at ` #` and could not contain `: `."""

CodeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Upload your code for task custom or script; default: the spec file's folder if the program is there.",
    ),
]


def read_spec(client: Client, source: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return the document to submit, which the service validates.

    Raises:
        SpecError: the source is not YAML, or not a mapping.
        UsageError: there is neither a file nor a preset of that name.
    """
    document = _load(client, source)
    if not isinstance(document, dict):
        raise SpecError([Problem(param="", message=_NO_FIELDS)])
    return apply_settings(document, settings)


def apply_settings(document: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return the document with each `path=value` set; `steps` without `epochs` removes `epochs`, and vice versa.

    Raises:
        UsageError: a setting has another form.
    """
    chosen = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(f"--set takes path=value, like optimizer.lr=1e-3; not {setting!r}")
        chosen[path] = read_value("--set", setting, value, path)
        set_path(document, path, chosen[path])
    return document | fields_reset_by(chosen)


def read_value(option: str, given: str, text: str, path: str) -> Any:
    """Parse a value of the command line as YAML; for a field of text, `1` is a text, since the shell removes quotes.

    Raises:
        UsageError: the text is not YAML; the message names the option.
    """
    textual = is_text(path)
    if textual and _PLAIN_SCALAR.match(text):
        return text.strip()
    try:
        return load_yaml(text, all_text=textual)
    except SpecError as error:
        problem = _YAML_POSITION.sub("", error.problems[0].message)
        raise UsageError(f"{option} {given}: the value is not valid YAML ({problem})") from None


def upload_code(client: Client, document: dict[str, Any], source: str, folder: Path | None) -> None:
    """Upload the given folder, or the default folder, without the spec file, and set the spec's `code`."""
    if folder := folder or _find_code(document, source):
        # With the spec in the archive, a changed spec, such as a new `resume_from`, would count as other code.
        document["code"] = client.upload(folder, without=Path(source))


def _find_code(document: dict[str, Any], source: str) -> Path | None:
    """Return the default folder to upload: the folder of the spec file or of the presets, if it contains the
    program."""
    expected = expected_code_files(document)
    if document.get("code") is not None:
        return None
    spec = Path(source)
    from_pipe = source == "-" or _is_readable(spec)
    folder = spec.resolve().parent if spec.is_file() else Path.cwd() if from_pipe else code_folder()
    # A command may name its files anywhere, as `bash run.sh` does.
    named = expected
    if is_command(document) and isinstance(document.get("argv"), list):
        named = tuple(path_in_code(str(word), start_folder(document)) for word in document["argv"])
    if any((folder / str(file)).is_file() for file in named):
        return folder
    if task_kind(document.get("task")).runs_program and expected and document["argv"][0] != "-m":
        raise UsageError(f"argv: there is no file {expected[0]!r} in {folder}; name its folder with --code")
    return None


def _load(client: Client, source: str) -> Any:
    if source == "-":
        return load_yaml(sys.stdin.read())
    path = Path(source)
    if _is_readable(path):
        return _parse(path)
    if path.suffix or len(path.parts) > 1:
        raise UsageError(f"{source!r} is a folder; name a file" if path.is_dir() else f"there is no file {source!r}")
    return _preset(client, source)


def _is_readable(path: Path) -> bool:
    """Return whether the path is a file or a pipe, such as the shell's `<(...)`."""
    return path.exists() and not path.is_dir()


def _parse(path: Path) -> Any:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if path.suffix != ".json":
        return load_yaml(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError([Problem(param="", message=f"not valid JSON: {error}")]) from None


def _preset(client: Client, name: str) -> dict[str, Any]:
    try:
        return dict(client.template(name).spec)
    except NotFoundError:
        presets = [template.name for template in client.templates()]
        names = ", ".join(presets)
        if Path(name).is_dir():
            raise UsageError(f"{name!r} is a folder, not a preset; use a file in it, or one of: {names}") from None
        near = get_close_matches(name, presets, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no file and no preset {name!r}; {meant}presets: {names}") from None
