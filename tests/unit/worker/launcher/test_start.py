"""The process that imports torchrun while the launcher claims the attempt."""

import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from worker.launcher import start

PROGRAM = """
import os, sys
from worker.launcher.start import become_torchrun
arguments = become_torchrun()
with open(arguments[0], "w", errors="surrogateescape") as file:
    print(os.umask(0), os.environ.get("ONE"), "HOME" in os.environ, sys.stdin.buffer.read(), arguments[1:], file=file)
print("to the log")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an attempt folder whose program only writes what it got."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(start, "PROGRAM", (str(tmp_path / "program.py"),))
    write(tmp_path, fork_ranks=False)
    return tmp_path


def write(folder, **restart):
    (folder / "launch.json").write_text(json.dumps({"spec": {"restart": restart}}))


@pytest.fixture
def handlers():
    """Restore this process's handlers of the signals that the launcher counts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_signals_during_the_imports_of_the_launcher_count(monkeypatch, folder):
    counted = []
    supervise = SimpleNamespace(
        run=lambda _folder, _waiting, signals: counted.append((signals.stops, signals.warnings))
    )
    monkeypatch.setitem(sys.modules, "worker.launcher.supervise", supervise)
    monkeypatch.setattr("worker.launcher.supervise", supervise, raising=False)
    for name in ("speed_up_imports", "raise_soft_limits"):
        monkeypatch.setattr(start, name, lambda: None)

    def receive_signals(_folder):
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(start, "start_waiting", receive_signals)
    start.run(str(folder))
    assert counted == [(2, 1)]


def test_the_process_gets_all_that_it_needs_when_it_begins(folder):
    waiting = start.start_waiting(str(folder))
    assert waiting.process.poll() is None
    arguments = [str(folder / "result"), "--nnodes", "2"]
    variables = {"ONE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert waiting.begin(arguments, variables, 0o027, folder / "log", b'{"SECRET": "x"}')
    assert waiting.process.wait(20) == 0
    assert (folder / "result").read_text() == "23 1 False b'{\"SECRET\": \"x\"}' ['--nnodes', '2']\n"
    assert (folder / "log").read_text() == "to the log\n"
    waiting.end()


def test_a_process_that_is_not_needed_ends(folder):
    waiting = start.start_waiting(str(folder))
    waiting.end()
    assert waiting.process.returncode is not None
    assert not (folder / "result").exists()
    waiting.end()


def test_a_process_that_has_ended_cannot_begin(folder):
    waiting = start.start_waiting(str(folder))
    waiting.process.kill()
    waiting.process.wait()
    assert not waiting.begin([], {}, 0, folder / "log", b"")
    waiting.end()


def test_without_the_launcher_it_ends(folder):
    waiting = start.start_waiting(str(folder))
    os.close(waiting.begin_pipe)
    assert waiting.process.wait(20) == 0


def test_a_process_that_cannot_start_leaves_no_open_files(folder, monkeypatch):
    monkeypatch.setattr(start.sys, "executable", str(folder / "missing"))
    before = len(os.listdir("/proc/self/fd"))
    assert start.start_waiting(str(folder)) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_variables_that_are_no_text_arrive_as_they_are(folder):
    waiting = start.start_waiting(str(folder))
    value = os.fsdecode(b"\xff \n x")
    variables = {"ONE": value, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert waiting.begin([str(folder / "result")], variables, 0o027, folder / "log", b"")
    assert waiting.process.wait(20) == 0
    assert b"\xff \n x" in (folder / "result").read_bytes()


def test_ranks_that_are_forks_get_their_variables_before_the_imports(folder):
    write(folder, fork_ranks=True)
    assert start.start_waiting(str(folder)) is None


def test_an_unreadable_document_is_left_to_the_launcher(folder):
    for text in ("", "[]", "\xff", '{"spec": {}}', '{"spec": {"restart": null}}', '{"spec": [{"restart": 1}]}'):
        (folder / "launch.json").write_text(text)
        assert start.start_waiting(str(folder)) is None
    (folder / "launch.json").unlink()
    assert start.start_waiting(str(folder)) is None
