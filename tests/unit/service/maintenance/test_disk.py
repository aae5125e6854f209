"""The measured size of a run."""

import os
from pathlib import Path

import pytest

from service.core.untrusted_files import UntrustedFiles
from service.maintenance import disk
from service.maintenance.disk import used_bytes
from trainyard.contract.layout import RunLayout


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_links_to_the_origins_checkpoint_are_free(tmp_path: Path) -> None:
    source, run = write(tmp_path / "source" / "weights"), RunLayout(tmp_path / "run")
    run.origin(5).root.mkdir(parents=True)
    os.link(source, run.origin(5).root / "weights")
    write(run.artifacts / "a", 3)
    assert used_bytes(UntrustedFiles(tmp_path), run) == 3


def test_links_below_other_folders_named_origin_are_counted(tmp_path: Path) -> None:
    source, run = write(tmp_path / "source"), RunLayout(tmp_path / "run")
    (run.artifacts / "origin").mkdir(parents=True)
    os.link(source, run.artifacts / "origin" / "weights")
    assert used_bytes(UntrustedFiles(tmp_path), run) == 10


def test_links_within_the_folder_origin_alone_are_counted_once(tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "run")
    os.link(write(run.origins / "a"), run.origins / "b")
    assert used_bytes(UntrustedFiles(tmp_path), run) == 10


def test_walk_ends_at_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunLayout(tmp_path / "run")
    for number in range(5):
        write(run.root / f"file-{number}", 1)
    monkeypatch.setattr(disk, "MAX_MEASURED", 3)
    assert used_bytes(UntrustedFiles(tmp_path), run) == 3
    monkeypatch.undo()
    monkeypatch.setattr(disk, "_MAX_DEPTH", 1)
    write(run.root / "one" / "counted", 1)
    write(run.root / "one" / "two" / "too-deep", 1)
    assert used_bytes(UntrustedFiles(tmp_path), run) == 6


def test_missing_run_has_no_size(tmp_path: Path) -> None:
    assert used_bytes(UntrustedFiles(tmp_path), RunLayout(tmp_path / "run")) == 0
