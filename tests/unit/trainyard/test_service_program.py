import os
import subprocess
import sys

import pytest

from trainyard.cli import service_program
from trainyard.cli.service_program import missing_packages, service_command, service_problem

REQUIREMENTS = [
    "pydantic>=2.12",
    'fastapi>=0.133; extra == "service"',
    'uvloop>=0.21; platform_system != "Windows" and extra == "service"',
    "psycopg[binary]>=3.2; extra == 'service'",
    'torch>=2.11; extra == "worker"',
]


def test_every_package_of_the_extra_is_checked():
    assert missing_packages(REQUIREMENTS, lambda name: name == "fastapi") == ["uvloop", "psycopg"]
    assert missing_packages([], lambda name: False) == []


def test_what_an_installation_of_the_client_alone_lacks_is_named(monkeypatch):
    monkeypatch.setattr(service_program, "_is_installed", lambda name: name != "structlog")
    problem = service_problem()
    assert problem is not None
    assert problem.startswith("the service lacks packages: structlog; install what it needs with: ")
    assert "pip install -c constraints.txt -e '.[service,worker]'" in problem


def test_this_installation_is_complete():
    assert service_problem() is None


@pytest.mark.cpu_seconds(6)
def test_a_folder_named_like_the_package_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "trainyard").mkdir()
    monkeypatch.chdir(tmp_path)
    command = service_command("--help")
    assert command == [sys.executable, "-P", "-m", "service", "--help"]
    environment = os.environ | {"PYTHONPATH": str(service_program._ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_source_tree_runs_its_own_service(monkeypatch):
    monkeypatch.chdir(service_program._ROOT)
    assert service_command("serve")[1:] == ["-m", "service", "serve"]
