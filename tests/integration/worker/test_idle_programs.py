"""A program that stands still is reported with the process and its reason, though it reports no progress."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, store_code, wait_for
from worker.core.processes import descendants, kill_remaining

PROGRAM = """
import os, subprocess, sys, threading, time

mode, go_on = sys.argv[1], "go-on"
if mode == "node 1 works" and os.environ["RANK"] == "0":
    mode = "lock"
print(mode, "begins", flush=True)

def hang():
    if mode == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=600)
    elif mode == "pipe":
        os.mkfifo("data")
        open("data").read()
    elif mode == "child":
        subprocess.run(["sleep", "600"])
    elif mode == "stopped":
        os.kill(os.getpid(), 19)
    elif mode == "pause":
        while not os.path.exists("../../go-on"):
            time.sleep(0.1)
    else:
        while True:
            print("works", flush=True)
            time.sleep(0.2)

hang()
"""
REASONS = {
    "lock": ("lock", "train.py:13 in hang waits for a lock, a queue or a thread"),
    "pipe": ("file", "train.py:16 in hang waits for "),
    "child": ("child", "train.py:18 in hang waits for another process"),
    "stopped": ("stopped", "is stopped by a signal or a debugger"),
}


@pytest.fixture(scope="module")
def service():
    with FakeService() as fake:
        yield fake


def program(folder: Path, service: FakeService, mode: str, nodes: int = 1, **health: float) -> Run:
    code = store_code(folder, PROGRAM)
    document = {"task": "script", "argv": ["train.py", mode], "code": code, "gpus": nodes, "health": health}
    service.events.clear()
    return Run(folder / "job", service.url, document, template="script_line", nodes=nodes, max_restarts=0)


@pytest.mark.heavy
@pytest.mark.parametrize("mode", REASONS)
def test_program_that_stands_still_is_reported_with_its_reason(tmp_path: Path, service: FakeService, mode: str) -> None:
    run = program(tmp_path, service, mode, idle_minutes=0.05)
    run.start()
    try:
        wait_for(lambda: service.events_of_type("stall_suspected"), "the event", 40)
        (event,) = service.events_of_type("stall_suspected")
        kind, text = REASONS[mode]
        assert event["data"]["kind"] == kind, event
        assert event["message"].startswith("The program has stood still for "), event["message"]
        assert text in event["message"]
        assert run.process is not None
        assert run.process.poll() is None, "the program is not ended"
    finally:
        stop(run)


@pytest.mark.heavy
def test_program_that_goes_on_is_reported_and_not_ended(tmp_path: Path, service: FakeService) -> None:
    run = program(tmp_path, service, "pause", idle_minutes=0.05)
    attempt = run.start()
    try:
        wait_for(lambda: service.events_of_type("stall_suspected"), "the event", 40)
        (attempt.work / "../../go-on").resolve().touch()
        wait_for(lambda: service.finishes or (attempt.finish(1)).exists(), "the end", 40)
    finally:
        stop(run)
    assert finish_of(attempt, 1).reason == "completed"


@pytest.mark.heavy
def test_program_is_ended_if_the_spec_has_a_timeout(tmp_path: Path, service: FakeService) -> None:
    attempt = program(tmp_path, service, "lock", idle_minutes=0.05, stall_timeout_minutes=0.15).run(seconds=60)
    record = finish_of(attempt, 1)
    assert record.failure is not None
    assert (record.reason, record.failure.type) == ("stalled", "Stalled")
    assert "the program stood still for" in record.failure.message
    assert "train.py:13 in hang waits for a lock" in record.failure.message
    assert "raise health.stall_timeout_minutes" in (record.failure.hint or "")
    assert processes_of(attempt) == []


@pytest.mark.heavy
def test_program_that_works_on_one_of_two_nodes_is_not_suspected(tmp_path: Path, service: FakeService) -> None:
    run = program(tmp_path, service, "node 1 works", nodes=2, idle_minutes=0.05)
    attempt = run.start()
    try:
        wait_for(lambda: "works" in log_of(attempt.rank_log(1)), "node 1", 60)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + 12, "four times the limit")
        assert service.events_of_type("stall_suspected") == []
    finally:
        stop(run)


def log_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def stop(run: Run) -> None:
    """Kill the launchers and all processes below them."""
    for launcher in (run.process, *run.other_nodes):
        if launcher is not None:
            below = descendants(launcher.pid)
            launcher.kill()
            launcher.wait()
            kill_remaining(below)


def test_py_spy_is_installed() -> None:
    """The lines in the messages above come from it."""
    assert shutil.which("py-spy", path=str(Path(sys.executable).parent))
