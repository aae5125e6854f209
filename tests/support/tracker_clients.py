"""Programs that report with the installed clients of trackers, and with the older ones of `make older-clients`."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

Clients = Literal["installed", "older"]
CLIENTS = ("installed", pytest.param("older", marks=pytest.mark.heavy))
"""Parameters of a test. `make test` does not install the older clients."""
CLIENTS_OF_DETAILS = ("installed", pytest.param("older", marks=pytest.mark.slow))
"""Parameters of further tests of the same protocol."""
_OLDER = Path(sys.prefix) / "older"
_REQUIREMENTS = Path(__file__).parents[1] / "older_clients.txt"


def run_program(text: str, folder: Path, variables: Mapping[str, str], clients: Clients = "installed") -> str:
    """Run a program to its end in a folder and return what it printed; it must succeed."""
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    own = {"HOME": str(folder), **variables}
    if folders := import_folders(clients):
        own["PYTHONPATH"] = folders[0]
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=inherited | own,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def import_folders(clients: Clients) -> list[str]:
    """Return the folders from which a program imports the clients before the installed ones."""
    assert clients == "installed" or _OLDER.is_dir(), f"{_OLDER} is missing; run: make older-clients"
    return [str(_OLDER)] if clients == "older" else []


def older_version(package: str) -> str:
    """Return the version of the older client of a package."""
    pins = dict(line.split("==") for line in _REQUIREMENTS.read_text().split("\n") if "==" in line)
    return pins[package].strip()
