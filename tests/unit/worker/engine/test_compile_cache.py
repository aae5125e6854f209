"""The folder of compiled code: one for each environment, without libraries that were cut off."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch

from worker.engine.compile_cache import cache_folder, use_compile_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        # Deleted at the end, also if the code sets it.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return cache_folder("/usr/bin/g++")


def library(folder, name, *, bytes_left=None, age=100.0):
    """Write a library, or only its beginning, that was last changed some seconds ago."""
    source = next(Path(torch.__file__).parent.glob("_C.*.so"))
    path = folder / "ab" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes()[:bytes_left])
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_folder_depends_on_user_and_environment(folder, monkeypatch):
    assert str(os.getuid()) in folder.name
    assert cache_folder("/usr/bin/g++") == folder != cache_folder("/usr/bin/clang++")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert cache_folder("/usr/bin/g++") != folder


def test_libraries_that_were_cut_off_are_deleted(folder):
    whole, fresh = library(folder, "whole.so"), library(folder, "fresh.so", bytes_left=500, age=1.0)
    cut = [library(folder, f"{size}.so", bytes_left=size) for size in (0, 10, 500)]
    folder.chmod(0o700)
    use_compile_cache("/usr/bin/g++")
    assert [whole.exists(), fresh.exists(), *(path.exists() for path in cut)] == [True, True, False, False, False]


@pytest.mark.parametrize("writing", [True, False])
def test_library_of_a_killed_process_is_deleted_at_once(folder, writing):
    cut = library(folder, "cut.main.so", bytes_left=500, age=1.0)
    folder.chmod(0o700)
    (folder / "locks").mkdir()
    with (folder / "locks" / "cut.lock").open("w") as lock:
        if writing:
            fcntl.flock(lock, fcntl.LOCK_EX)
        use_compile_cache("/usr/bin/g++")
    assert cut.exists() == writing


def test_environment_names_the_folder_for_torch(folder):
    use_compile_cache("/usr/bin/g++")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folder_that_the_environment_names_is_used(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))
    cut = library(tmp_path / "own", "cut.so", bytes_left=100)
    use_compile_cache("/usr/bin/g++")
    assert not cut.exists()
    assert not folder.exists()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "own")


@pytest.mark.parametrize("how", ["link", "link to nothing", "file", "writable"])
def test_folder_of_another_user_is_not_used(folder, tmp_path, how):
    if how.startswith("link"):
        folder.symlink_to(tmp_path if how == "link" else tmp_path / "nothing")
    elif how == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    use_compile_cache("/usr/bin/g++")
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_damaged_library_that_cannot_be_deleted_is_reported(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "shared"))
    library(tmp_path / "shared", "cut.so", bytes_left=100)

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    use_compile_cache("/usr/bin/g++")
    assert "cannot be deleted" in caplog.text
