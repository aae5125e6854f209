"""The section `environment`: which Pythons, modules and lines a spec may name."""

from typing import Any

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import ADJUSTABLE, FIXED, LAYOUT
from trainyard.contract.spec.spec_diff import differing_paths, flatten
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, parse_spec

BASE = {"task": "script", "argv": ["/p.py"]}


def spec(**environment: Any) -> TrainingSpec:
    return parse_spec({**BASE, "environment": environment})


def problem(**environment: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec(**environment)
    (one,) = caught.value.problems
    return str(one)


def test_fields_are_accepted_and_name_what_requires_the_code_role() -> None:
    made = spec(venv="/home/ada/my env", modules=["gcc/12.2", "cuda"], setup=["export A='$(b)'\t# c"]).environment
    assert made.code_fields == ("environment.venv", "environment.modules", "environment.setup")
    assert spec(variables={"APP_A": "1"}).environment.code_fields == ()
    assert spec(python="/usr/bin/python3.12").environment.code_fields == ("environment.python",)
    assert spec(conda="torch-2.9_cu12").environment.conda == "torch-2.9_cu12"
    assert spec(conda="/opt/conda/envs/a").environment.conda == "/opt/conda/envs/a"


@pytest.mark.parametrize(("first", "second"), [("python", "venv"), ("python", "conda"), ("venv", "conda")])
def test_two_pythons_are_refused(first: str, second: str) -> None:
    expected = (
        f"environment.{second}: cannot be combined with `environment.{first}`; each defines the Python of the ranks"
    )
    assert problem(**{first: "/a", second: "/b"}) == expected


@pytest.mark.parametrize("value", ["python3", "", "~/env", "../env", "/a\nb", "/a\0b", "/a:b", "/" + "x" * 1024])
@pytest.mark.parametrize("field", ["python", "venv"])
def test_paths_are_absolute_and_on_one_line(field: str, value: str) -> None:
    assert problem(**{field: value}).startswith(f"environment.{field}: ")


@pytest.mark.parametrize("value", ["", "-n", "a b", "$(id)", "../x", "a/b", "a\n", "'", "x" * 2000])
def test_conda_is_a_name_or_a_path(value: str) -> None:
    assert problem(conda=value).startswith("environment.conda: ")


@pytest.mark.parametrize(
    "value", ["-x", "", "a b", "$(id)", "a;b", "a\nb", "'a'", "`id`", "/etc/passwd", "../a", "x" * 256]
)
def test_module_names_have_no_characters_of_the_shell(value: str) -> None:
    assert problem(modules=["gcc", value]).startswith("environment.modules.1: ")


@pytest.mark.parametrize("value", ["", "a\nb", "a\0b", "a\rb", "x" * 4097])
def test_setup_has_one_line_an_item(value: str) -> None:
    assert problem(setup=[value]).startswith("environment.setup.0: ")


def test_numbers_of_modules_and_lines_are_bounded() -> None:
    assert problem(modules=["a"] * 33).startswith("environment.modules: ")
    assert problem(setup=["a"] * 65).startswith("environment.setup: ")


def test_environment_differs_in_a_comparison_but_not_in_a_fork() -> None:
    ours, theirs = (flatten(dump_spec(spec(**section))) for section in ({"venv": "/a"}, {"modules": ["gcc"]}))
    assert differing_paths([ours, theirs]) == ["environment.venv", "environment.modules"]
    assert not any(name.startswith("environment") for name in (*FIXED, *ADJUSTABLE, *LAYOUT))
