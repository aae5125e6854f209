"""Programs before Slurm's own on the PATH: they call the real one, and fail the way a real cluster does."""

import os
import shutil
from pathlib import Path

import pytest

COUNTED = ("squeue", "sacct", "scancel", "sbatch")


def real(name: str) -> str:
    """The real program."""
    path = shutil.which(name)
    assert path is not None
    return path


def install(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in a program's place; `$REAL` in it is the program."""
    folder.mkdir(exist_ok=True)
    program = real(name)
    if str(folder) not in os.environ["PATH"].split(os.pathsep):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    file = folder / name
    file.write_text(f"#!/bin/sh\nREAL={program}\n{body}\n")
    file.chmod(0o755)


def count_calls(folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call of a command leave a line."""
    for name in COUNTED:
        install(folder, name, f'echo {name} >> {log}\nexec $REAL "$@"', monkeypatch)
