"""The variables and arguments of a program."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.environment import start_command
from worker.environment.program_hook import RECORD
from worker.rank.script import arguments, script_variables


def script(**changes: Any) -> TrainingSpec:
    return parse_spec({"version": 1, "task": "script", "argv": ["main.py"], "code": "sha256:" + "0" * 64, **changes})


def test_a_program_gets_folders_that_exist(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    variables = script_variables({"PYTHONSAFEPATH": "1", "SUBMITIT_FOLDER": "f", "OTHER": "x"}, layout, script())
    assert variables == {
        "OTHER": "x",
        "TRAINYARD_ATTEMPT_FOLDER": str(layout.root),
        "TRAINYARD_CHECKPOINT_DIR": str(tmp_path / "job" / "checkpoints"),
        "TRAINYARD_ARTIFACT_DIR": str(tmp_path / "job" / "artifacts"),
        "TRAINYARD_RESUMED": "0",
        "PYTHONUNBUFFERED": "1",
        RECORD: "1",
    }
    assert Path(variables["TRAINYARD_CHECKPOINT_DIR"]).is_dir()
    assert Path(variables["TRAINYARD_ARTIFACT_DIR"]).is_dir()


def test_a_program_knows_the_folders_of_the_jobs_before_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    second, first = f"job_{2:026}", f"job_{1:026}"
    variables = script_variables({}, layout, script(after=[second, f"{first}:ended"]))
    assert variables["TRAINYARD_AFTER"] == f"{tmp_path / second}:{tmp_path / first}"


@pytest.mark.parametrize(
    ("argv", "started"),
    [
        (["bash", "run.sh"], ["bash", "run.sh"]),
        (["./a.out", "x"], ["./a.out", "x"]),
        (["bin/tool"], ["bin/tool"]),
        (["/opt/tool"], ["/opt/tool"]),
    ],
)
def test_a_command_is_executed_by_the_python_of_the_rank(argv: list[str], started: list[str]) -> None:
    command = arguments(script(argv=argv, launch={"mode": "exec"}))
    assert command == ["-I", "-S", "-c", inspect.getsource(start_command), *started]


@pytest.mark.parametrize(
    ("changes", "started"),
    [
        ({"argv": ["main.py", "x"]}, ["python", "main.py", "x"]),
        ({"argv": ["-m", "pkg"]}, ["python", "-m", "pkg"]),
        ({"argv": ["make"], "launch": {"mode": "exec"}}, ["make"]),
    ],
)
def test_variables_that_select_code_are_set_when_the_program_starts(
    changes: dict[str, Any], started: list[str]
) -> None:
    spec = script(environment={"variables": {"PYTHONPATH": "src", "APP_A": "1"}}, **changes)
    command = arguments(spec)
    assert command == ["-I", "-S", "-c", inspect.getsource(start_command), "env", "PYTHONPATH=src", *started]


def test_a_file_is_named_as_in_a_shell() -> None:
    assert arguments(script(argv=["exp/main.py", "x"])) == ["exp/main.py", "x"]


def test_only_python_records_the_exception_of_a_command(tmp_path: Path) -> None:
    """A shell may handle the failure of a Python program that it runs."""
    layout = RunLayout(tmp_path / "job").attempt("1-a")
    for argv, is_recorded in (
        (["python", "-X", "dev", "a.py"], True),
        (["bash", "run.sh"], False),
        (["env", "a=1", "python", "a.py"], True),
    ):
        assert (RECORD in script_variables({}, layout, script(argv=argv, launch={"mode": "exec"}))) == is_recorded
