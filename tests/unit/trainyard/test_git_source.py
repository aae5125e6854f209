"""What git knows about a folder of code."""

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.client.code_archive import pack
from trainyard.client.code_folder import CodeFolder, code_folder
from trainyard.client.git_source import read_git
from trainyard.client.left_out import included_files

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with a tracked, a new and an ignored file, and a folder that is ignored."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("old\n")
    (tmp_path / ".gitignore").write_text("data\n")
    for arguments in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "start")):
        subprocess.run([*GIT, "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_text("x")
    (tmp_path / "src" / "new file.py").write_text("new\n")
    return tmp_path


def names(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack(folder, source=read_git(folder)).data)) as archive:
        return archive.getnames()


def test_tracked_and_new_files_are_archived(tree: Path) -> None:
    assert names(tree) == [".gitignore", "src/new file.py", "src/train.py"]
    assert names(tree / "src") == ["new file.py", "train.py"]


def test_uncommitted_changes_are_recorded(tree: Path) -> None:
    source = read_git(tree)
    assert source is not None
    assert (len(source.commit), source.labels["git_branch"], source.labels["git_dirty"]) == (40, "main", "no")
    (tree / "src" / "train.py").write_text("changed\n")
    source = read_git(tree)
    assert source is not None
    assert source.labels["git_dirty"] == "yes"
    assert b"-old\n+changed\n" in source.diff
    assert names(tree)[-1] == ".trainyard/uncommitted.diff"


def test_ignored_files_are_known_and_can_be_included(tree: Path) -> None:
    source, inside = read_git(tree), CodeFolder(tree, "src")
    assert source is not None
    assert source.ignored == ("data/",)
    for folder, paths in ((CodeFolder(tree), ["data"]), (CodeFolder(tree), [tree / "data"]), (inside, ["../data"])):
        assert included_files(folder, paths) == {"data/big.bin"}
    source = replace(source, files=source.files | {"data/big.bin"})
    assert "data/big.bin" in pack(tree, source=source).names


def test_deleted_file_is_left_out(tree: Path) -> None:
    (tree / "src" / "train.py").unlink()
    assert names(tree) == [".gitignore", "src/new file.py", ".trainyard/uncommitted.diff"]


def test_files_and_changes_of_submodules_are_archived(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "lib.py").write_text("old\n")
    (library / ".gitignore").write_text("cache\n")
    for arguments in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "start")):
        subprocess.run([*GIT, "-C", str(library), *arguments], check=True)
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "src/library")
    subprocess.run([*GIT, "-C", str(tree), *add], check=True)
    subprocess.run([*GIT, "-C", str(tree), "commit", "-q", "-m", "add the library"], check=True)
    (tree / "src" / "library" / "cache").write_text("x")
    (tree / "src" / "library" / "lib.py").write_text("changed\n")
    assert [name for name in names(tree / "src") if name.startswith("library/")] == [
        "library/.gitignore",
        "library/lib.py",
    ]
    source = read_git(tree)
    assert source is not None
    assert b"-old\n+changed\n" in source.diff


def test_clone_inside_of_the_tree_is_archived(tree: Path) -> None:
    subprocess.run([*GIT, "-C", str(tree), "init", "-q", "clone"], check=True)
    (tree / "clone" / "inner.py").write_text("")
    assert "clone/inner.py" in names(tree)


def test_repository_without_a_commit_has_files_alone(tmp_path: Path) -> None:
    subprocess.run([*GIT, "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / "train.py").write_text("")
    source = read_git(tmp_path)
    assert source is not None
    assert (source.files, source.labels) == (
        frozenset({"train.py"}),
        {"git_repository": tmp_path.name, "git_dirty": "no"},
    )


def test_other_folders_have_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    assert read_git(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert read_git(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(tmp_path) is None
    assert names(tmp_path) == ["train.py"]


def test_the_repository_of_the_current_folder_is_the_code(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tree / "src")
    assert code_folder(None) == CodeFolder(tree, "src")
    assert code_folder(".") == CodeFolder(Path())
    (tree / "data" / "train.py").touch()
    monkeypatch.chdir(tree / "data")
    assert code_folder(None) == CodeFolder(Path()), "git ignores this folder"
    monkeypatch.chdir(tree)
    assert code_folder(None) == CodeFolder(Path())
    monkeypatch.chdir(tree / "src")
    monkeypatch.setenv("HOME", str(tree / "src"))
    assert code_folder(None) == CodeFolder(Path()), "the repository of a home folder"
