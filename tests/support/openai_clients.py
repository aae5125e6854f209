"""Programs that use OpenAI's client: the installed version, and older ones, which `make older-clients` installs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.prepared_interpreter import prepared_interpreter

_OLDER_VERSIONS = Path(__file__).parents[1] / "older_openai.txt"
OLDER = tuple(
    line.removeprefix("openai==") for line in _OLDER_VERSIONS.read_text().split() if line.startswith("openai==")
)
VERSIONS = ("installed", *OLDER)
PARAMETERS = ("installed", *(pytest.param(version, marks=pytest.mark.heavy) for version in OLDER))
"""The versions, for tests of `make test`, which does not install the older ones."""

_HEAD = """
import json, os, sys, typing
import openai
from openai import OpenAI
from openai.types import FileDeleted, FileObject, Model, ModelDeleted
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
def strict(kind, value):
    '''Validate an answer against the client's own type, which the client does not do.'''
    document = value.to_dict(mode="json", exclude_unset=False)
    if kind is FineTuningJob and document["status"] == "paused":
        # The client's types do not list this status of OpenAI's API.
        kind.model_validate({**document, "status": "queued"}, strict=True)
    else:
        kind.model_validate(document, strict=True)
    unknown = set(value.model_extra or {}) - {"first_id", "last_id"}
    assert not unknown, unknown
    return document
def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param, error.message]
"""


_CLIENT = (
    'client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], '
    'max_retries=int(os.environ["RETRIES"]))'
)
_LOAD = "OpenAI(api_key='none').fine_tuning.jobs"
"""The client imports most of its modules when they are used."""


def _environment(version: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    if version != "installed":
        older = Path(sys.prefix) / f"openai-{version}"
        assert older.is_dir(), f"{older} is missing; run: make older-clients"
        environ["PYTHONPATH"] = str(older)
    return environ


def _head(version: str) -> str:
    check = "" if version == "installed" else f"assert openai.__version__ == {version!r}, openai.__version__\n"
    return f"{_HEAD}\n{check}"


def _variables(url: str, token: str, retries: int) -> dict[str, str]:
    return {"BASE_URL": f"{url}/openai/v1", "API_KEY": token, "RETRIES": str(retries)}


@contextmanager
def prepared_client(version: str) -> Iterator[Callable[[str, str, str, Path], Any]]:
    """Import the client once; yield a function as `run_program` that runs a program in a fork."""
    with prepared_interpreter(f"{_head(version)}\n{_LOAD}", _environment(version)) as interpreter:
        yield lambda text, url, token, folder: interpreter.run(f"{_CLIENT}\n{text}", folder, _variables(url, token, 0))


def start_program(
    text: str, url: str, token: str, version: str, folder: Path, retries: int = 0
) -> "subprocess.Popen[str]":
    """Start a program with the client; what it assigns to `out` is written to `out.json`."""
    program = f"{_head(version)}\n{_CLIENT}\n{text}\nopen('out.json', 'w').write(json.dumps(out))"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=_environment(version) | _variables(url, token, retries),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_program(text: str, url: str, token: str, version: str, folder: Path, retries: int = 0) -> Any:
    """Run such a program to its end, and return what it assigned to `out`."""
    program = start_program(text, url, token, version, folder, retries)
    output, _ = program.communicate(timeout=300)
    assert program.returncode == 0, output
    return json.loads((folder / "out.json").read_text())
