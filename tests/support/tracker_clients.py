"""Programs that report with the installed clients of trackers, and with the older ones of `make older-clients`."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

Clients = str
"""`installed`, `older`, or the pin of a version, such as `wandb==0.20.0`."""
CLIENTS = ("installed", pytest.param("older", marks=pytest.mark.heavy))
"""Parameters of a test. `make test` does not install the older clients."""
CLIENTS_OF_DETAILS = ("installed", pytest.param("older", marks=pytest.mark.slow))
"""Parameters of further tests of the same protocol."""
_OLDER = Path(sys.prefix) / "older"
_LINES = Path(sys.prefix) / "client-lines"
_REQUIREMENTS = Path(__file__).parents[1] / "older_clients.txt"
_PINS = Path(__file__).parents[1] / "client_lines.txt"
_READER = """
import contextlib, json, pathlib
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

runs = []
for path in pathlib.Path().rglob("run-2*/run-*.wandb"):
    store = DataStore()
    store.open_for_scan(str(path))
    run = {"name": "", "lines": [], "axes": {}, "summary": {}}
    # A kill can leave a part of the last record.
    with contextlib.suppress(AssertionError):
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            run["name"] = record.run.display_name or run["name"]
            if record.metric.step_metric:
                run["axes"][record.metric.name] = record.metric.step_metric
            if line := {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}:
                run["lines"].append(line)
            run["summary"] |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
    runs.append(run)
print("RUNS", json.dumps(runs))
"""
"""Newer clients of W&B have no reader in Python."""


def lines_of(package: str) -> list[Any]:
    """Return parameters of a test: the lowest version of each minor line of a package."""
    pins = [line.split()[0] for line in _PINS.read_text().splitlines() if line.startswith(f"{package}==")]
    return [pytest.param(pin, marks=pytest.mark.slow) for pin in pins]


def run_program(text: str, folder: Path, variables: Mapping[str, str], clients: Clients = "installed") -> str:
    """Run a program to its end in a folder and return what it printed; it must succeed."""
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    own = {"HOME": str(folder), **variables}
    if folders := import_folders(clients):
        own["PYTHONPATH"] = os.pathsep.join(folders)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=inherited | own,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=230,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def import_folders(clients: Clients) -> list[str]:
    """Return the folders from which a program imports the clients before the installed ones."""
    if clients == "installed":
        return []
    # Versions without dependencies run with those of the older clients.
    folders = [_OLDER] if clients == "older" else [_LINES / clients, _OLDER]
    assert all(one.is_dir() for one in folders), f"{folders[0]} is missing; run: make older-clients client-lines"
    return [str(one) for one in folders]


def version_of(clients: Clients, package: str) -> str:
    """Return the version of a package's client with which programs run."""
    if clients == "installed":
        return version(package)
    if clients != "older":
        return clients.partition("==")[2]
    pins = dict(line.split("==") for line in _REQUIREMENTS.read_text().split("\n") if "==" in line)
    return pins[package].strip()


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """Return what the client's own files below a folder have of each run: `name`, `lines`, `axes` and `summary`."""
    printed = run_program(_READER, folder, {}, "older")
    runs: list[dict[str, Any]] = json.loads(printed.partition("RUNS ")[2])
    return runs
