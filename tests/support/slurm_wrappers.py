"""Wrappers of Slurm's commands on the PATH, which call the real command and simulate failures."""

import os
import shutil
from pathlib import Path

import pytest

COUNTED_COMMANDS = ("squeue", "sacct", "scancel", "sbatch")


def real(name: str) -> str:
    """Return the path of the real program."""
    path = shutil.which(name)
    assert path is not None
    return path


def install(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a program by a shell script, in which `$REAL` is the real program."""
    folder.mkdir(exist_ok=True)
    program = real(name)
    if str(folder) not in os.environ["PATH"].split(os.pathsep):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    file = folder / name
    file.write_text(f"#!/bin/sh\nREAL={program}\n{body}\n")
    file.chmod(0o755)


def count_calls(folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a line for each call of a command."""
    for name in COUNTED_COMMANDS:
        install(folder, name, f'echo {name} >> {log}\nexec $REAL "$@"', monkeypatch)
