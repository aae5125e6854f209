"""Checkpoints whose files cannot be written."""

import errno
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem

from trainyard.contract.layout import CheckpointLayout
from worker.checkpoint.storage import CheckpointFilesError, CheckpointStorage
from worker.core.errors import is_disk_full


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_failed_write_is_an_ordinary_exception(group, tmp_path, monkeypatch, asynchronous):
    def fail(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileSystem, "create_stream", fail)
    storage = CheckpointStorage(group, torch.device("cpu"), asynchronous=asynchronous)
    storage.save(CheckpointLayout(tmp_path / "step-0000000001"), {"a": torch.ones(3)}, lambda: None)
    with pytest.raises(BaseException, match="No space left on device") as raised:
        storage.wait()
    # torch's own class derives from BaseException, and would end the run.
    assert isinstance(raised.value, Exception)
    assert is_disk_full(raised.value)
    monkeypatch.undo()
    completed = []
    storage.save(CheckpointLayout(tmp_path / "step-0000000002"), {"a": torch.ones(3)}, lambda: completed.append(2))
    storage.wait()
    assert completed == [2]


def test_failed_read_names_its_cause(group, tmp_path):
    checkpoint = CheckpointLayout(tmp_path / "step-0000000001")
    storage = CheckpointStorage(group, torch.device("cpu"), asynchronous=False)
    storage.save(checkpoint, {"model": {"a": torch.ones(3)}}, lambda: None)
    storage.wait()
    next(checkpoint.root.glob("*.distcp")).unlink()
    with pytest.raises(CheckpointFilesError, match=r"^rank 0: FileNotFoundError: "):
        storage.load(checkpoint, {"model": {"a": torch.zeros(3)}})
