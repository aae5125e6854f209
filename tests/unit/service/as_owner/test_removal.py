"""Removing paths below a run folder."""

import os
import time
from pathlib import Path, PurePosixPath

import pytest

from service.as_owner.removal import remove

SOON = 1e9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for path in ("checkpoints/step-1/data", "checkpoints/step-2/data", "spec.json"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
    return folder


def paths(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if not path.is_dir()}


def test_a_path_and_nothing_else_is_removed(run: Path) -> None:
    assert remove(run, [PurePosixPath("checkpoints/step-1")], until=SOON) == []
    assert paths(run) == {"checkpoints/step-2/data", "spec.json"}


def test_the_folder_itself_is_removed(run: Path) -> None:
    assert remove(run, [None], until=SOON) == []
    assert not run.exists()


@pytest.mark.parametrize("path", ["nothing", "nothing/below", "checkpoints/step-9"])
def test_a_missing_path_counts_as_removed(run: Path, path: str) -> None:
    assert remove(run, [PurePosixPath(path)], until=SOON) == []
    assert len(paths(run)) == 3


def test_a_missing_run_folder_counts_as_removed(tmp_path: Path) -> None:
    assert remove(tmp_path / "nothing", [None], until=SOON) == []


def test_links_are_removed_and_not_followed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (run / "checkpoints" / "step-3").symlink_to(outside)
    (run / "checkpoints" / "step-1" / "link").symlink_to(outside / "precious")
    assert remove(run, [PurePosixPath("checkpoints/step-3"), PurePosixPath("checkpoints/step-1")], until=SOON) == []
    assert (outside / "precious").exists()
    assert not os.path.lexists(run / "checkpoints" / "step-3")


def test_a_link_on_the_way_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    (run / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="link"):
        remove(run, [PurePosixPath("link/precious")], until=SOON)
    assert (tmp_path / "outside" / "precious").exists()


def test_a_link_in_place_of_the_run_folder_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(OSError, match="link"):
        remove(tmp_path / "link", [None], until=SOON)
    assert len(paths(run)) == 3


def test_a_tree_of_any_depth_is_removed(run: Path) -> None:
    handle = os.open(run, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("deeper", dir_fd=handle)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    assert remove(run, [PurePosixPath("deeper")], until=SOON) == []
    assert not (run / "deeper").exists()


def test_what_is_left_at_the_end_of_the_time_has_vanished(run: Path) -> None:
    (left,) = remove(run, [PurePosixPath("checkpoints")], until=time.monotonic() - 1)
    assert not (run / "checkpoints").exists()
    assert (run / left).exists()
    assert remove(run, [], until=SOON) == []
    assert paths(run) == {"spec.json"}
