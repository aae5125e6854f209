"""Paths of uploaded code."""

import shlex

import pytest

from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.user_code import expected_code_files, program_name


@pytest.mark.parametrize(
    ("argv", "launch", "expected"),
    [
        (["train.py"], {}, ("train.py",)),
        (["../a/train.py"], {"folder": "exp"}, ("a/train.py",)),
        (["-m", "pkg.train"], {"folder": "exp"}, ("exp/pkg/train.py", "exp/pkg/train/__main__.py")),
        (["./run"], {"folder": "exp", "mode": "exec"}, ("exp/run",)),
        (["make"], {"folder": "exp", "mode": "exec"}, ()),
        (["/opt/train.py"], {"folder": "exp"}, ()),
    ],
)
def test_program_is_a_file_of_the_folder_in_which_it_starts(
    argv: list[str], launch: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert expected_code_files({"task": "script", "argv": argv, "launch": launch}) == expected


def test_start_folder_is_relative_to_the_root() -> None:
    spec = {"task": "script", "argv": ["../train.py"]}
    assert parse_spec({**spec, "launch": {"folder": "./exp//a/"}}).start_folder == "exp/a"
    assert parse_spec({**spec, "argv": ["train.py"]}).start_folder == ""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 3", "train"),
        ("torchrun -x ./src/fit.py", "fit"),
        ("make train", "make"),
        ("bash run_all.sh", "run_all"),
        ("bash -c 'cd src && A=1 python train.py > log'", "train"),
        ("bash -lc 'set -e; module load cuda; exec python -u -m pkg.train --lr 3'", "pkg.train"),
        ("sh -c './a.out state 5'", "a"),
        ("sh -c 'make data && make train'", "make"),
        ("bash -c 'bash -c \"python inner.py\"'", "inner"),
        ("bash -c ''", "bash"),
        ("bash -c 'cd src'", "bash"),
    ],
)
def test_name_is_of_the_program(command: str, name: str) -> None:
    assert program_name(shlex.split(command)) == name
