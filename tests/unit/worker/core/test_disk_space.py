"""A full or read-only filesystem is recognized as the cause of an execution's end."""

import errno
import os
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.core import disk_space
from worker.core.errors import describe, describe_foreign_error, write_error
from worker.core.first_failure import find_first_failure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_error_of_a_full_disk_is_named(number: int) -> None:
    assert describe(OSError(number, os.strerror(number)), rank=0, execution=1).reason == "disk_full"


def test_earlier_exceptions_are_examined() -> None:
    error = RuntimeError("the export failed")
    error.__cause__ = ValueError("nested")
    error.__cause__.__context__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert describe(error, rank=0, execution=1).reason == "disk_full"
    error.__cause__.__context__.__context__ = error
    assert disk_space.disk_problem(Path("/nowhere")) is None


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), ValueError("no space left on device")])
def test_other_errors_are_no_full_disk(error: Exception) -> None:
    assert describe(error, rank=0, execution=1).reason == "error"


def test_error_of_a_program_is_recognized_by_its_message() -> None:
    message = "[Errno 122] Disk quota exceeded: 'model.pt'"
    where = {"rank": 0, "execution": 1, "time": 1.0, "host": "node1", "pid": 5}
    error = describe_foreign_error("OSError", message, traceback="", exit_code=1, final=False, **where)
    assert error.reason == "disk_full"


def test_rank_that_could_write_no_error_file_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = AttemptLayout(tmp_path)
    layout.errors.mkdir()
    assert not disk_space.ended_by_full_disk(layout, 1)

    def refuse(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    assert disk_space.ended_by_full_disk(layout, 1)
    first = find_first_failure(layout, 1)
    assert (first.reason, "No space left on device" in first.failure.message) == ("disk_full", True)
    assert list(tmp_path.iterdir()) == [layout.errors]


def test_reported_error_is_not_replaced_by_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = AttemptLayout(tmp_path)
    layout.errors.mkdir()
    write_error(layout.rank_error(0), describe(ValueError("wrong"), rank=0, execution=1))
    monkeypatch.setattr(disk_space, "disk_problem", lambda _: OSError(errno.ENOSPC, "full"))
    assert not disk_space.ended_by_full_disk(layout, 1)
    assert find_first_failure(layout, 1).reason == "error"
