"""Which modules an import loads, measured in two fresh interpreters."""

import json
import subprocess
import sys

import pytest

WORKER_SIDE = [
    ("trainyard", {"torch", "fastapi", "httpx", "pydantic", "typer", "service", "worker"}),
    ("trainyard.script", {"torch", "httpx", "fastapi", "service", "worker"}),
    ("trainyard.contract.spec.training_spec", {"torch", "fastapi", "httpx", "service", "worker"}),
    ("worker.rank.script", {"torch", "numpy", "fastapi", "service"}),
    ("worker.launcher.supervise", {"torch", "fastapi", "sqlalchemy", "service", "psutil"}),
    (
        "worker.engine.trainer",
        {"fastapi", "sqlalchemy", "service", "psutil", "sklearn", "transformers", "torch._dynamo"},
    ),
]
"""Modules in the order of import, each with the modules that it may not load. One interpreter imports all of them, so
what a line forbids must be absent after every line above it as well."""

FIRST = [("worker.launcher.supervisor", {"pydantic", "httpx", "torch"})]
"""Of the launcher, before it starts the process that becomes torchrun."""
SERVICE_SIDE = [
    ("service.api.app", {"torch", "worker", "sklearn"}),
    ("service.__main__", {"torch", "worker", "sklearn"}),
]


def forbidden_modules(imports: list[tuple[str, set[str]]]) -> dict[str, set[str]]:
    """Import the modules one after the other in a fresh interpreter; the forbidden ones that each left loaded."""
    program = "import importlib, json, sys\nfor name in sys.argv[1:]: importlib.import_module(name); "
    program += "print(json.dumps(sorted(sys.modules)))"
    names = [name for name, _ in imports]
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    loaded = [set(json.loads(line)) for line in done.stdout.splitlines()]
    return {name: present & absent for (name, absent), present in zip(imports, loaded, strict=True) if present & absent}


@pytest.mark.cpu_seconds(8)
def test_worker_and_contract_load_no_service_packages() -> None:
    assert forbidden_modules(WORKER_SIDE) == {}


@pytest.mark.cpu_seconds(6)
def test_service_loads_neither_torch_nor_worker() -> None:
    assert forbidden_modules(SERVICE_SIDE) == {}


STARTED = """
import contextlib, gc, runpy
sys.argv = ["worker"]
with contextlib.suppress(IndexError):
    runpy.run_module("worker", run_name="__main__")
import worker.reporting.service_client
print(json.dumps([gc.get_threshold()[0] > 10_000, "rich" in sys.modules, "worker.rank.main" in sys.modules]))
"""
"""A rank without its argument ends after the imports of its first lines."""


def test_a_rank_starts_with_few_collections_and_without_rich() -> None:
    done = subprocess.run([sys.executable, "-c", f"import json, sys\n{STARTED}"], capture_output=True, check=True)
    assert json.loads(done.stdout) == [True, False, True]


def test_torchrun_imports_no_http_client() -> None:
    assert forbidden_modules([("worker.launcher.elastic", {"httpx"})]) == {}


def test_the_launcher_imports_little_before_it_starts_torchrun() -> None:
    assert forbidden_modules(FIRST) == {}
