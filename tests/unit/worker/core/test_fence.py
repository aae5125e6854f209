"""The fence of a run directory."""

import os
from pathlib import Path

import pytest

from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.launch import CurrentAttempt
from worker.core.fence import FenceMonitor, RunFence, SupersededError


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    run = RunLayout(tmp_path)
    make_current(run, "one", 1)
    return run


def make_current(run: RunLayout, attempt_id: str, number: int) -> None:
    run.current.write_text(CurrentAttempt(attempt_id=attempt_id, attempt=number, execution=number).model_dump_json())


def test_only_the_current_attempt_may_write(run: RunLayout) -> None:
    RunFence(run, "one").check()
    make_current(run, "two", 2)
    RunFence(run, "two").check()
    with pytest.raises(SupersededError, match="than one is"):
        RunFence(run, "one").check()


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b'{"attempt_id": 7}', b"null"])
def test_nothing_follows_from_a_file_that_cannot_be_read(run: RunLayout, content: bytes | None) -> None:
    run.current.unlink()
    if content is not None:
        run.current.write_bytes(content)
    assert RunFence(run, "one").current() is None
    RunFence(run, "one").check()


def test_a_pipe_in_place_of_the_file_does_not_block(run: RunLayout) -> None:
    run.current.unlink()
    os.mkfifo(run.current)
    assert RunFence(run, "one").current() is None


def test_monitor_reads_the_file_once_per_interval(run: RunLayout) -> None:
    clock = [0.0]
    monitor = FenceMonitor(RunFence(run, "one"), 5.0, now=lambda: clock[0])
    make_current(run, "two", 2)
    clock[0] = 4.9
    assert not monitor.poll()
    assert FenceMonitor(RunFence(run, "one"), 5.0, now=lambda: 0.0).poll(at_once=True)
    clock[0] = 5.0
    assert monitor.poll()
    make_current(run, "one", 1)
    clock[0] = 60.0
    assert monitor.poll(), "an attempt that has ended its ranks cannot go on"
