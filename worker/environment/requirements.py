"""Packages that the worker needs in an environment's Python, and a message about missing packages. Pure functions."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec

MIN_PYTHON = (3, 11)
_ALWAYS = ("torch", "pydantic", "httpx", "numpy", "safetensors")
"""Packages that all ranks import."""
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?:\[[^]]*\])?[^;]*?>=\s*(?P<least>[0-9][0-9.]*)")


@dataclass(frozen=True)
class Requirement:
    """A package and the lowest version that the worker supports."""

    name: str
    least: str = ""

    def __str__(self) -> str:
        return f"{self.name}>={self.least}" if self.least else self.name


@dataclass(frozen=True)
class Packages:
    """The probe's report about a Python."""

    python: tuple[int, ...]
    versions: Mapping[str, str | None]
    """Versions by package; empty if the version is unknown, None if the package is missing."""


def needed_packages(spec: TrainingSpec, project: Iterable[str]) -> list[Requirement]:
    """Return the packages that a spec's ranks import; none for the user's own program.

    Args:
        project: The requirements of Trainyard, with versions.
    """
    if spec.task_kind.runs_program:
        return []
    names = list(_ALWAYS)
    if isinstance(spec.model, HfModel):
        names.append("transformers")
        if spec.lora_rank is not None:
            names.append("peft")
    if spec.precision_kind.converts_linear_layers:
        names.append("torchao")
    lowest = {match["name"].lower(): match["least"] for line in project if (match := _LINE.match(line))}
    return [Requirement(name, lowest.get(name, "")) for name in names]


def project_requirements() -> list[str]:
    """Return the requirements of the installed Trainyard."""
    try:
        return metadata.requires("trainyard") or []
    except metadata.PackageNotFoundError:
        return []


def parse_packages(output: str) -> Packages | None:
    """Return the report on the probe's last line; None if it printed something else."""
    try:
        document = json.loads(output.strip().rpartition("\n")[2])
        return Packages(tuple(map(int, document["python"])), dict(document["packages"]))
    except (ValueError, TypeError, KeyError):
        return None


def unmet_requirements(packages: Packages, needed: Sequence[Requirement], python: str) -> str | None:
    """Return a message with the missing packages and the command that installs them; None if no package is missing.

    Args:
        python: The path of the interpreter.
    """
    if not needed:
        return None
    version = ".".join(map(str, packages.python))
    if packages.python < MIN_PYTHON:
        lowest = ".".join(map(str, MIN_PYTHON))
        return f"{python} is Python {version}, and Trainyard's worker needs {lowest} or newer; use another Python"
    lacking = [(one, problem) for one in needed if (problem := _problem(one, packages.versions.get(one.name)))]
    if not lacking:
        return None
    problems = ", ".join(problem for _, problem in lacking)
    install = " ".join([shlex.quote(python), "-m pip install", *(shlex.quote(str(one)) for one, _ in lacking)])
    return f"{python} (Python {version}) cannot run Trainyard's worker: {problems}. To install it: {install}"


def _problem(requirement: Requirement, version: str | None) -> str | None:
    if version is None:
        return f"{requirement.name} is missing"
    if version and requirement.least and _numbers(version) < _numbers(requirement.least):
        return f"{requirement.name} is {version}, older than {requirement.least}"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version up to the first part that is not a number: 2.11.0+cpu is (2, 11, 0)."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
