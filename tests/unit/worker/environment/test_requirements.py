"""What an environment's Python lacks, and the command that installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.environment.check import _probe
from worker.environment.packages import provide_helper, provide_worker
from worker.environment.requirements import (
    Packages,
    Requirement,
    needed_packages,
    parse_packages,
    project_requirements,
    unmet_requirements,
)

PYTHON = "/home/ada/my env/bin/python"
TORCH = Requirement("torch", "2.11")


def custom(**changes: object) -> TrainingSpec:
    return parse_spec({"task": "custom", "target": "a:b", "steps": 1, **changes})


def test_requirements_come_from_the_metadata_of_the_project() -> None:
    needed = {one.name: one.least for one in needed_packages(custom(), project_requirements())}
    assert list(needed) == ["torch", "pydantic", "httpx", "numpy", "safetensors"]
    assert all(needed.values())
    line = ["httpx[http2]<0.29,>=0.28; python_version >= '3.9'", "numpy; python_version >= '3.9'"]
    assert {one.name: one.least for one in needed_packages(custom(), line)}["httpx"] == "0.28"
    assert {one.name: one.least for one in needed_packages(custom(), line)}["numpy"] == ""


def test_script_needs_nothing() -> None:
    assert needed_packages(parse_spec({"task": "script", "argv": ["/p.py"]}), ["torch>=2.11"]) == []


def test_optional_packages_are_needed_only_by_specs_that_use_them() -> None:
    document = {"task": "causal_lm", "steps": 1, "data": {"source": "jsonl", "path": "/d"}, "precision": "fp8"}
    spec = parse_spec({**document, "model": {"source": "hf", "path": "/m"}, "lora_rank": 4})
    names = [str(one) for one in needed_packages(spec, ['peft>=0.18 ; extra == "hf"', "torchao>=0.18"])]
    assert names[-3:] == ["transformers", "peft>=0.18", "torchao>=0.18"]


class TestUnmet:
    def test_missing_and_old_packages_are_one_command(self) -> None:
        packages = Packages((3, 12, 1), {"torch": "2.4.0+cu121", "pydantic": None, "httpx": "0.28.1"})
        needed = [TORCH, Requirement("pydantic", "2.12"), Requirement("httpx", "0.28")]
        assert unmet_requirements(packages, needed, PYTHON) == (
            f"{PYTHON} (Python 3.12.1) cannot run Trainyard's worker: torch is 2.4.0+cu121, older than 2.11, "
            "pydantic is missing. To install it: '/home/ada/my env/bin/python' -m pip install 'torch>=2.11' "
            "'pydantic>=2.12'"
        )

    @pytest.mark.parametrize("version", ["2.11", "2.11.0", "2.11.1a0+git12", "3.0", "10.0", ""])
    def test_newer_and_unknown_versions_are_accepted(self, version: str) -> None:
        assert unmet_requirements(Packages((3, 11, 0), {"torch": version}), [TORCH], PYTHON) is None

    def test_old_python_is_refused_only_where_the_worker_runs(self) -> None:
        old = Packages((3, 9, 18), {})
        assert "is Python 3.9.18, and Trainyard's worker needs 3.11" in str(unmet_requirements(old, [TORCH], PYTHON))
        assert unmet_requirements(old, [], PYTHON) is None


@pytest.mark.parametrize("output", ["", "no json", "[]", '{"python": 3}', "{}", '{"python": [3], "packages": 4}'])
def test_other_output_of_the_probe_is_no_answer(output: str) -> None:
    assert parse_packages(output) is None


def test_probe_reports_versions_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text("from typing import Optional\n__version__ = '2.12.0a0+git'\n")
    (tmp_path / "bare.py").write_text("raise SystemExit('imported')")
    command = [sys.executable, "-S", "-c", _probe(), "torch", "bare", "absent_one"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    packages = parse_packages("a warning\n" + done.stdout)
    assert packages == Packages(sys.version_info[:3], {"torch": "2.12.0a0+git", "bare": "", "absent_one": None})


class TestPackages:
    def test_worker_is_importable_with_nothing_else_of_the_service(self, tmp_path: Path) -> None:
        for _ in range(2):
            provide_worker(tmp_path / "packages")
        assert sorted(path.name for path in (tmp_path / "packages").iterdir()) == ["trainyard", "worker"]
        program = "import worker.core.processes, trainyard; print(worker.__file__, trainyard.__file__)"
        command = [sys.executable, "-S", "-c", program]
        variables = {"PYTHONPATH": str(tmp_path / "packages")}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert [Path(path).parents[1] for path in done.stdout.split()] == [tmp_path / "packages"] * 2

    def test_helper_leaves_an_installed_trainyard_importable(self, tmp_path: Path) -> None:
        for _ in range(2):
            provide_helper(tmp_path / "packages")
        installed = tmp_path / "installed" / "trainyard"
        installed.mkdir(parents=True)
        (installed / "__init__.py").write_text("raise SystemExit('the wrong one')")
        (installed / "client.py").write_text("class Client: pass\n")
        program = "import trainyard; from trainyard.script import report; print(trainyard.Client, trainyard.report)"
        variables = {"PYTHONPATH": f"{tmp_path}/packages:{tmp_path}/installed"}
        command = [sys.executable, "-S", "-c", program]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert "trainyard.client.Client" in done.stdout
