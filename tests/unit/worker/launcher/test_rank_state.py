"""The state of a process from /proc, of real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wait import wait_until
from worker.core.processes import start_time
from worker.launcher.rank_state import LineReader, RankState, read_state


def state_of(process: "subprocess.Popen[bytes]", used: float = 0.0, seconds: float = 1.0) -> RankState:
    return read_state(1, "gpu-1", process.pid, start_time(process.pid), used, seconds)


def program(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-S", "-c", text])


@pytest.fixture
def ended() -> "subprocess.Popen[bytes]":
    process = program("")
    process.wait()
    return process


def test_stopped_process() -> None:
    process = program("import time; time.sleep(60)")
    try:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process).is_stopped)
        assert state_of(process).host == "gpu-1"
    finally:
        process.kill()
        process.wait()


def test_process_that_opens_a_pipe_names_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = program(f"open({str(pipe)!r}).read()")
    try:
        wait_until(lambda: state_of(process).waits_for == str(pipe))
        writer = os.open(pipe, os.O_WRONLY)
        wait_until(lambda: state_of(process).waits_for == str(pipe))
        os.close(writer)
    finally:
        process.kill()
        process.wait()


def test_process_that_waits_for_a_lock() -> None:
    process = program("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()")
    try:
        wait_until(lambda: state_of(process).in_lock)
        assert state_of(process).waits_for == ""
    finally:
        process.kill()
        process.wait()


def test_process_that_has_ended(ended: "subprocess.Popen[bytes]") -> None:
    assert read_state(1, "", ended.pid, 5, 0.0, 1.0).has_ended
    assert read_state(1, "", os.getpid(), 5, 0.0, 1.0).has_ended, "another process has its number"


def test_share_of_a_processor_is_of_the_observation() -> None:
    own, used = os.getpid(), sum(os.times()[:2])
    state = read_state(0, "", own, start_time(own), used - 0.5, 1.0)
    assert 0.4 < state.processor_share < 1.5


PROGRAM = (
    "import threading\n\ndef work():\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n\nwork()\n"
)


def test_line_of_a_waiting_program_is_its_own_and_not_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("lock.acquire()\n\n", "threading.Event().wait()\n\n"))
    process = subprocess.Popen([sys.executable, "-S", str(tmp_path / "train.py")])
    try:
        wait_until(lambda: state_of(process).in_lock)
        assert LineReader(process.pid).close() == "train.py:6 in work"
    finally:
        process.kill()
        process.wait()


def test_line_is_unknown_without_py_spy_and_for_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert LineReader(process.pid).close() == ""
        monkeypatch.setattr("shutil.which", lambda *_, **__: None)
        assert LineReader(os.getpid()).close() == ""
    finally:
        process.kill()
        process.wait()
