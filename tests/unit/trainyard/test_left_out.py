"""Notes about files that were not uploaded."""

from pathlib import Path

import pytest

from trainyard.client.code_folder import CodeFolder
from trainyard.client.left_out import ignored_note, missing_file_hint


@pytest.mark.parametrize(
    ("ignored", "named"),
    [
        (("sets/", "weights.pt"), "sets/, weights.pt;"),
        (("a", "b", "c", "d", "e"), "a, b, c and 2 more;"),
        ((".env", "wandb/", "src/__pycache__/", "train.log", "venv/", "pkg.egg-info/"), None),
        (("data/", "data/a.csv"), None),
    ],
)
def test_only_files_that_a_program_may_read_are_named(ignored: tuple[str, ...], named: str | None) -> None:
    note = ignored_note(ignored, ["train.py", "data/a.csv"], CodeFolder(Path()))
    assert note == (named and f"not uploaded, as git ignores them: {named} upload one with --include PATH")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/a.csv", "train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    "path",
    ["data/a.csv", "./data/a.csv", "/runs/job_1/work/data/a.csv", "/runs/job_1/attempts/1-a/code/data/a.csv"],
)
def test_a_file_that_is_here_and_was_not_uploaded_is_named(folder: Path, path: str) -> None:
    hint = missing_file_hint(f"[Errno 2] No such file or directory: '{path}'", CodeFolder(folder), {"train.py"})
    assert hint is not None
    assert hint.startswith(f"'data/a.csv' exists in '{folder}' and was not uploaded")


@pytest.mark.parametrize("path", ["train.py", "absent.csv", "/etc/hosts", "../x", ".", "a\\0b"])
def test_any_other_file_is_not(folder: Path, path: str) -> None:
    assert missing_file_hint(f"No such file: '{path}'", CodeFolder(folder), {"train.py"}) is None


def test_a_file_outside_of_the_folder_is_named(folder: Path) -> None:
    (folder / "sub").mkdir()
    hint = missing_file_hint("No such file or directory: '../data/a.csv'", CodeFolder(folder / "sub"), {"train.py"})
    assert hint is not None
    assert hint.startswith("'../data/a.csv' exists here, outside of the folder")


def test_a_folder_without_uploaded_files_is_named(folder: Path) -> None:
    (folder / "results").mkdir()
    message = "[Errno 2] No such file or directory: 'results/new.txt'"
    hint = missing_file_hint(message, CodeFolder(folder), {"train.py"})
    assert hint is not None
    assert hint.endswith("create it in the program: os.makedirs('results', exist_ok=True)")
    assert missing_file_hint(message, CodeFolder(folder), {"results/a"}) is None
    assert missing_file_hint("No such file: 'absent/new.txt'", CodeFolder(folder), {"train.py"}) is None
    assert missing_file_hint("No such file: '../new.txt'", CodeFolder(folder / "results"), {"train.py"}) is None


@pytest.mark.parametrize("path", ["../data/a.csv", "/runs/job_1/work/data/a.csv"])
def test_a_file_of_the_repository_is_named_from_the_working_folder(folder: Path, path: str) -> None:
    (folder / "sub").mkdir()
    hint = missing_file_hint(f"No such file: '{path}'", CodeFolder(folder, "sub"), {"sub/train.py"})
    assert hint is not None
    assert hint.startswith(f"'../data/a.csv' exists in '{folder}/sub' and was not uploaded")
    assert missing_file_hint(f"No such file: '{path}'", CodeFolder(folder, "sub"), {"data/a.csv"}) is None
    assert ignored_note(["data/", "sub/x"], [], CodeFolder(folder, "sub")) == (
        "not uploaded, as git ignores them: ../data/, x; upload one with --include PATH"
    )
