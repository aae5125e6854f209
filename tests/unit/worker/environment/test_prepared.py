"""Which variables and which interpreter a rank gets from the prepared environment of its node."""

import sys
from pathlib import Path

import pytest

from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.environment.prepared import (
    Changes,
    InterpreterEnvironment,
    Prepared,
    changes_between,
    preparation_variables,
    read_prepared,
    spec_values,
    write_prepared,
)
from worker.environment.rank_command import RANK_ENVIRONMENT_VARIABLE
from worker.environment.select import rank_environment

RANK = {
    "PATH": "/bin",
    "PYTHONPATH": "/service/source",
    "PYTHONSAFEPATH": "1",
    "VIRTUAL_ENV": "/service/venv",
    "RANK": "1",
    "OMP_NUM_THREADS": "2",
    RANK_ENVIRONMENT_VARIABLE: "/attempt/environment-0.json",
}


UNCHANGED = Changes()


def environment(changes: Changes = UNCHANGED, interpreter: str = "/env/bin/python", **more: object):
    return InterpreterEnvironment(interpreter, changes, **{"spec_variables": {}, **more})


def test_difference_has_new_changed_and_removed_variables() -> None:
    before = {"A": "1", "B": "2", "C": "3", "SHLVL": "1"}
    after = {"A": "1", "B": "two\nlines=", "D": "", "SHLVL": "2", "_": "/usr/bin/env", "PWD": "/"}
    assert changes_between(before, after) == Changes({"B": "two\nlines=", "D": ""}, ("C",))


@pytest.mark.parametrize(
    "name", ["RANK", "MASTER_ADDR", "TRAINYARD_ATTEMPT", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID"]
)
def test_preparation_cannot_change_what_identifies_a_rank(name: str) -> None:
    assert changes_between({name: "1"}, {name: "2"}) == Changes()
    assert changes_between({name: "1"}, {}) == Changes()


def test_preparation_begins_without_the_python_of_the_service() -> None:
    assert preparation_variables({**RANK, "HOME": "/root"}).keys() & {"PYTHONPATH", "VIRTUAL_ENV"} == set()
    assert preparation_variables({"HOME": "/root", "PATH": "/bin"}) == {"HOME": "/root", "PATH": "/bin"}


class TestCommand:
    def test_interpreter_runs_the_arguments(self) -> None:
        command = environment().command(["-m", "worker", "/a b"], RANK, Path("/"))
        assert command.argv == ("/env/bin/python", "-m", "worker", "/a b")

    def test_another_interpreter_has_nothing_of_the_python_of_the_service(self) -> None:
        variables = environment().command([], RANK, Path("/")).variables
        assert variables == {"PATH": "/bin", "RANK": "1", "OMP_NUM_THREADS": "2", "PYTHONSAFEPATH": "1"}

    def test_interpreter_of_the_service_stays_in_its_virtual_environment(self) -> None:
        variables = environment(interpreter=sys.executable).command([], RANK, Path("/")).variables
        assert variables["VIRTUAL_ENV"] == "/service/venv"

    def test_variables_of_the_spec_take_precedence_over_the_changes(self) -> None:
        changes = Changes({"OMP_NUM_THREADS": "8", "PATH": "/m:/bin", "APP_A": "module"})
        variables = environment(changes, spec_variables={"APP_A": "spec"}).command([], RANK, Path("/")).variables
        assert (variables["OMP_NUM_THREADS"], variables["PATH"], variables["APP_A"]) == ("8", "/m:/bin", "spec")

    def test_removed_variables_are_absent(self) -> None:
        assert "PATH" not in environment(Changes({}, ("PATH",))).command([], RANK, Path("/")).variables

    def test_own_packages_precede_those_of_modules(self) -> None:
        made = environment(Changes({"PYTHONPATH": "/module/lib"}), search_path=(Path("/attempt/packages"),))
        assert made.command([], RANK, Path("/")).variables["PYTHONPATH"] == "/attempt/packages:/module/lib"

    def test_program_of_a_user_imports_from_its_folder(self) -> None:
        assert "PYTHONSAFEPATH" not in environment(imports_folder=True).command([], RANK, Path("/")).variables


def spec(**changes: object) -> TrainingSpec:
    document = {
        "task": "script",
        "argv": ["/p.py"],
        "environment": {"variables": {"APP_A": "1"}, "secrets": ["X_TOKEN"]},
    }
    return parse_spec({**document, **changes})


def test_rank_without_a_prepared_environment_has_none() -> None:
    assert rank_environment(spec(), {"PATH": "/bin"}) is None


def test_rank_reads_what_its_node_prepared(tmp_path: Path) -> None:
    path = tmp_path / "environment-1.json"
    prepared = Prepared("/env/bin/python", Changes({"B": "\udcff\n"}, ("C",)), ("/packages",))
    write_prepared(path, prepared)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_prepared(path) == prepared
    values = {RANK_ENVIRONMENT_VARIABLE: str(path), "X_TOKEN": "hush", "APP_A": "1"}
    assert rank_environment(spec(), values) == InterpreterEnvironment(
        "/env/bin/python", prepared.changes, {"APP_A": "1", "X_TOKEN": "hush"}, (Path("/packages"),), True
    )
    assert spec_values(spec(), values) == {"APP_A": "1", "X_TOKEN": "hush"}
