"""Chooses the Python of a program: from the options, from the command, or from the environment that is active here."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_wrappers import program_position

PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")


@dataclass(frozen=True)
class ProgramPython:
    """The Python of the ranks."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """The field of the spec's `environment` that names it; empty: the Python of the service."""
    note: str | None = None
    """Note for the user."""


def choose_python(
    command: Sequence[str],
    *,
    venv: str | Path | None,
    container: str | None,
    active: bool,
    variables: Mapping[str, str],
    own_prefix: Path,
) -> ProgramPython:
    """Return the Python of a program.

    In this order: `venv` or `container`; the interpreter or launcher whose path the command has; the virtual or conda
    environment that is active here, except Trainyard's own environment and conda's `base`; the Python of the service.

    Args:
        active: Whether an active environment is used.
        variables: The variables of this process.
        own_prefix: The environment that runs Trainyard's own command.

    Raises:
        InvalidRequestError: the named Python cannot be used.
    """
    # A wrapper, such as uv, may be in an environment of its own, which is not the program's.
    word = next(iter(command[program_position(command) :]), "") if command else ""
    named = _of_path(word) if "/" in word else None
    if venv or container:
        option: dict[str, Any] = {"venv": str(_venv_folder(Path(venv)))} if venv else {}
        option |= {"container": {"image": container}} if container else {}
        if named and named != option:
            message = f"is given, and the command names another Python, {word!r}; remove one of them"
            raise InvalidRequestError(message, param="venv" if venv else "container")
        return ProgramPython(option)
    if named:
        return ProgramPython(named)
    return _active(variables, own_prefix) if active else ProgramPython()


def _of_path(word: str) -> dict[str, Any] | None:
    """Return the field for the interpreter at this path, or beside the launcher at this path; None for a program.

    Symbolic links are not followed, since the interpreter of a virtual environment is a link.
    """
    path = Path(os.path.abspath(Path(word).expanduser()))
    if path.name in _LAUNCHERS:
        launcher, path = path, path.with_name("python")
        if launcher.exists() and not path.exists():
            message = f"there is no `python` beside {str(launcher)!r}; name the environment with --venv"
            raise InvalidRequestError(message, param="command")
    elif not PYTHON_NAME.fullmatch(path.name):
        # A script of an environment, such as /envs/torch/bin/trl.
        return _environment_of(path) if path.with_name("python").exists() else None
    if not path.exists():
        if not Path(word).is_absolute():
            raise InvalidRequestError(f"there is no interpreter {str(path)!r}", param="command")
        return {"python": str(path)}
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InvalidRequestError(f"{str(path)!r} is no program that you may execute", param="command")
    return _environment_of(path) or {"python": str(path)}


def is_in_environment(path: Path) -> bool:
    """Return whether a program is in a virtual or conda environment, which is not uploaded."""
    return path.is_file() and _environment_of(Path(os.path.abspath(path))) is not None


def _environment_of(path: Path) -> dict[str, Any] | None:
    """Return the field for the virtual or conda environment with this program; None if it is in none."""
    folder = path.parent.parent
    if (folder / "pyvenv.cfg").is_file():
        return {"venv": str(folder)}
    return {"conda": str(folder)} if (folder / "conda-meta").is_dir() else None


def _venv_folder(folder: Path) -> Path:
    """Return the absolute path of a virtual environment. A missing environment may exist on the nodes."""
    path = Path(os.path.abspath(folder.expanduser()))
    if path.exists() and not (path / "bin" / "python").exists():
        raise InvalidRequestError(f"{str(path)!r} is no virtual environment: it has no bin/python", param="venv")
    return path


def _active(variables: Mapping[str, str], own_prefix: Path) -> ProgramPython:
    conda = "" if variables.get("CONDA_DEFAULT_ENV") == "base" else variables.get("CONDA_PREFIX", "")
    for name, folder in (("venv", variables.get("VIRTUAL_ENV", "")), ("conda", conda)):
        if not folder or not (Path(folder) / "bin" / "python").exists():
            continue
        if Path(folder).resolve() == own_prefix.resolve():
            return ProgramPython()
        note = f"the program runs in the active environment {folder}, which the nodes must have too"
        return ProgramPython({name: folder}, f"{note}; --no-venv: in the Python of the service")
    return ProgramPython()
