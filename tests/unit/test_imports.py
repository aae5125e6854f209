"""What an import brings along, each seen in a fresh process."""

import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import service.api.app, service.__main__", {"torch", "worker", "sklearn"}),
        ("import trainyard", {"torch", "fastapi", "httpx", "pydantic", "typer", "service", "worker"}),
        ("import trainyard.contract.spec", {"torch", "fastapi", "httpx", "service", "worker"}),
        ("import worker.launcher.supervisor", {"torch", "fastapi", "sqlalchemy", "service", "psutil"}),
        ("import trainyard.script", {"torch", "httpx", "fastapi", "service", "worker"}),
        ("import worker.rank.script", {"torch", "numpy", "fastapi", "service"}),
        ("import worker.engine.trainer", {"fastapi", "sqlalchemy", "service", "psutil", "sklearn", "transformers"}),
    ],
)
def test_an_import_stays_on_its_side(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent
