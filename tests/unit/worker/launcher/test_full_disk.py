"""The launcher on a disk that takes no writes."""

import errno
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import FinishRecord
from worker.launcher import elastic, exit_record, stop_signals
from worker.launcher.stop_signals import StopRequest


class Disk:
    """Replaces `write_atomic` in some modules by a function that fails while the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        for module in (elastic, exit_record, stop_signals):
            monkeypatch.setattr(module, "write_atomic", self._write)

    def _write(self, path: Path, content: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text(content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_exit_record_is_returned_to_be_sent(disk: Disk, tmp_path: Path) -> None:
    record = FinishRecord(execution=1, reason="preempted", step=7, time=datetime.now(UTC))
    assert exit_record.write_record(AttemptLayout(tmp_path), record) == record
    assert not AttemptLayout(tmp_path).finish(1).exists()


def test_stop_request_is_repeated_until_it_is_written(disk: Disk, tmp_path: Path) -> None:
    request = StopRequest(AttemptLayout(tmp_path))
    request.request("preempted")
    assert request.reason is None
    disk.is_full = False
    request.request("preempted")
    assert (request.reason, AttemptLayout(tmp_path).stop_request.read_text()) == ("preempted", "preempted")


def test_torchrun_goes_on_without_the_file_of_exits(disk: Disk, tmp_path: Path) -> None:
    failure = SimpleNamespace(exitcode=1, pid=7, timestamp=1, error_file="<N/A>", error_file_data=None)
    result = SimpleNamespace(failures={0: failure})
    monitor = elastic.record_failures(lambda *_: result, lambda restart: tmp_path / "exits.json", lambda restart: False)
    agent: Any = SimpleNamespace(_remaining_restarts=1)
    group: Any = SimpleNamespace(spec=SimpleNamespace(max_restarts=1))
    assert monitor(agent, group) is result
    assert not (tmp_path / "exits.json").exists()


def test_torchrun_restarts_no_ranks_after_a_full_disk(tmp_path: Path) -> None:
    result = SimpleNamespace(failures={0: SimpleNamespace(exitcode=1, pid=7, timestamp=1, error_file="<N/A>")})
    monitor = elastic.record_failures(lambda *_: result, lambda restart: tmp_path / f"{restart}.json", lambda _: True)
    agent: Any = SimpleNamespace(_remaining_restarts=2)
    monitor(agent, SimpleNamespace(spec=SimpleNamespace(max_restarts=3)))
    assert agent._remaining_restarts == 0
    assert (tmp_path / "1.json").exists()
