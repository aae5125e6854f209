"""Files below the runs folder: nothing is reached over links, nothing of another account counts."""

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from service.core.settings import Settings
from service.core.untrusted_files import (
    ForeignFileError,
    IrregularFileError,
    UntrustedFiles,
    files_of_attempt,
    files_of_job,
)

ME = os.geteuid()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs folder with one job, beside a folder with a secret."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    (tmp_path / "runs" / "job" / "inner").mkdir(parents=True)
    (tmp_path / "runs" / "job" / "inner" / "file").write_text("0123456789")
    return tmp_path / "runs"


def walked(files: UntrustedFiles, folder: Path, limit: int = 1000) -> list[str]:
    return [path for path, _ in files.walk(folder, limit=limit, enter=lambda _: True)]


def test_a_part_of_a_file_is_read(runs: Path) -> None:
    files = UntrustedFiles(runs, ME)
    assert files.read(runs / "job/inner/file", 2, 3) == b"234"
    assert files.status(runs / "job/inner/file").st_size == 10
    assert files.list_names(runs / "job", 10) == ["inner"]
    assert files.list_names(runs, 10) == ["job"]


def test_the_runs_folder_itself_may_be_a_link(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs)
    assert UntrustedFiles(tmp_path / "link", ME).read(tmp_path / "link/job/inner/file", 0, 1) == b"0"


@pytest.mark.parametrize("planted", ["job", "job/inner", "job/inner/file"])
def test_a_link_anywhere_in_the_path_is_not_followed(runs: Path, tmp_path: Path, planted: str) -> None:
    (runs / planted).rename(tmp_path / "moved")
    (runs / planted).symlink_to(tmp_path / "moved")
    files = UntrustedFiles(runs)
    with pytest.raises(IrregularFileError) as error:
        files.read(runs / "job/inner/file", 0, 10)
    assert error.value.kind == "link"
    if planted != "job/inner/file":
        assert walked(files, runs / "job/inner") == []
        with pytest.raises(IrregularFileError):
            files.list_names(runs / "job/inner", 10)
        with pytest.raises(IrregularFileError):
            files.status(runs / "job/inner/file")


def plant_pipe(path: Path) -> None:
    os.mkfifo(path)


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/cwd/{path.name}")


@pytest.mark.parametrize("plant", [plant_pipe, plant_socket])
def test_a_special_file_is_not_opened(
    runs: Path, plant: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs / "job")
    plant(runs / "job/planted")
    for path in ("job/planted", "job/planted/file"):
        with pytest.raises(IrregularFileError) as error:
            UntrustedFiles(runs).read(runs / path, 0, 10)
        assert error.value.kind == "special file"


def test_a_path_that_leads_out_does_not_exist(runs: Path) -> None:
    for path in ("job/../../secret/file", "job/\0", "job/\ud800"):
        with pytest.raises(FileNotFoundError):
            UntrustedFiles(runs).read(runs / path, 0, 10)
    with pytest.raises(IrregularFileError, match="is a folder"):
        UntrustedFiles(runs).read(runs / "job/inner", 0, 10)
    with pytest.raises(NotADirectoryError):
        UntrustedFiles(runs).read(runs / "job/inner/file/below", 0, 10)


def of_another_account(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Have the kernel report the path's file, wherever it is linked, as that of another account."""
    strange = path.stat().st_ino
    real, real_stat = os.fstat, os.stat

    def other(status: os.stat_result) -> os.stat_result:
        if status.st_ino != strange:
            return status
        return os.stat_result([*status[:4], ME + 1, *status[5:]], {"st_mtime_ns": status.st_mtime_ns})

    monkeypatch.setattr(os, "fstat", lambda handle: other(real(handle)))
    monkeypatch.setattr(os, "stat", lambda *args, **options: other(real_stat(*args, **options)))


def test_a_hard_link_to_a_file_of_another_account_gives_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(tmp_path / "secret/file", runs / "job/inner/planted")
    of_another_account(monkeypatch, tmp_path / "secret/file")
    assert UntrustedFiles(runs).read(runs / "job/inner/planted", 0, 10) == b"secret"
    files = UntrustedFiles(runs, ME)
    with pytest.raises(ForeignFileError):
        files.read(runs / "job/inner/planted", 0, 10)
    with pytest.raises(ForeignFileError):
        files.status(runs / "job/inner/planted")


@pytest.mark.parametrize("planted", ["job", "job/inner"])
def test_a_folder_of_another_account_gives_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    of_another_account(monkeypatch, runs / planted)
    files = UntrustedFiles(runs, ME)
    for read in (lambda: files.read(runs / "job/inner/file", 0, 1), lambda: files.list_names(runs / "job/inner", 9)):
        with pytest.raises(ForeignFileError):
            read()
    assert walked(files, runs / "job/inner") == []
    assert "job/inner/file" not in walked(files, runs)


def test_a_walk_yields_links_and_does_not_follow_them(runs: Path, tmp_path: Path) -> None:
    (runs / "job/out").symlink_to(tmp_path / "secret")
    (runs / "job/up").symlink_to("..")
    assert walked(UntrustedFiles(runs), runs / "job") == ["inner", "out", "up", "inner/file"]


def test_a_walk_of_a_deep_tree_has_one_folder_open(runs: Path) -> None:
    handle = os.open(runs / "job/inner", os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    files = UntrustedFiles(runs, ME)
    walk = files.walk(runs / "job/inner", limit=100_000, enter=lambda _: True)
    before = len(os.listdir("/proc/self/fd"))
    depths, opened = 0, 0
    for _path, status in walk:
        depths += stat.S_ISDIR(status.st_mode)
        opened = max(opened, len(os.listdir("/proc/self/fd")) - before)
    assert depths == 300
    assert opened <= 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_walk_ends_at_its_limit(runs: Path) -> None:
    for number in range(20):
        (runs / f"job/file-{number:02}").touch()
    assert len(walked(UntrustedFiles(runs), runs / "job", 7)) == 7


def test_a_folder_that_is_moved_during_a_walk_leads_nowhere(runs: Path, tmp_path: Path) -> None:
    """Going up from a moved folder would continue among the files of others."""
    for name in ("a", "b"):
        (runs / "job" / name).mkdir()
        (runs / "job" / name / "file").touch()
    paths = []
    for path, _ in UntrustedFiles(runs).walk(runs / "job", limit=100, enter=lambda _: True):
        paths.append(path)
        if path == "b/file":
            (runs / "job/b").rename(tmp_path / "secret/b")
            (tmp_path / "secret/a").mkdir()
            (tmp_path / "secret/a/other").touch()
    assert "b/file" in paths
    assert not [path for path in paths if path.startswith("a/")]


def test_what_is_opened_is_closed_after_an_error(runs: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (runs / "job/link").symlink_to("inner")
    for path in ("job/link/file", "job/absent/file", "job/inner/absent", "job/inner/file/x", "job/inner"):
        for owner in (ME, ME + 1):
            with suppress(OSError):
                UntrustedFiles(runs, owner).open_file(runs / path).close()
                pytest.fail(f"{path} was opened")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_owner_of_files_follows_the_setting(tmp_path: Path) -> None:
    def owner(run_as: str, uid: int | None) -> int | None:
        return files_of_job(Settings(state_dir=tmp_path, run_as=run_as), uid).owner  # type: ignore[arg-type]

    assert owner("service", None) is None
    assert owner("owner", 1234) == owner("service", 1234) == 1234
    assert owner("owner", None) == ME, "a job that ran as the service"
    assert files_of_attempt(tmp_path / "job/attempts/1-a").base == tmp_path
