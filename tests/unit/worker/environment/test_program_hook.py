"""What the hook in a program's Python records of its end, and does at it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from worker.environment.packages import provide_hook
from worker.environment.program_hook import RECORD

BAD = "class Bad(Exception): pass\n"


TEE = """
import sys
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): return self.stream.write(text)
    def flush(self): self.stream.flush()
sys.stderr = Tee(Tee(sys.stderr))
print("a warning", file=sys.stderr)
"""
PATCHED = """
import sys
written = sys.stderr.write
def write_with_callbacks(*data): return written("[log] " + data[0])
sys.stderr.write = write_with_callbacks
"""
AT_EXIT = """
import atexit, sys
def finish(name, more=""):
    text = "the tracker ends"
    sys.stderr.write(text)
atexit.register(finish, "x-1")
"""
CAUGHT = "import sys\ntry:\n    sys.exit('no')\nexcept SystemExit:\n    pass\n"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    provide_hook(tmp_path / "hook")

    def end_of(program: str, *, status: int, before: dict[str, str] | None = None) -> Any:
        record = tmp_path / "error.json"
        (tmp_path / "train.py").write_text(program)
        variables = {"PYTHONPATH": str(tmp_path / "hook"), "TORCHELASTIC_ERROR_FILE": str(record), RECORD: "1"}
        for folder, text in (before or {}).items():
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "sitecustomize.py").write_text(text)
            variables["PYTHONPATH"] += f":{tmp_path / folder}"
        ended = subprocess.run([sys.executable, tmp_path / "train.py"], env=variables, capture_output=True, text=True)
        assert ended.returncode == status, ended.stderr
        return json.loads(record.read_text()) if record.exists() else None

    return end_of


def exception_of(record: Any) -> Any:
    return record["trainyard"]["exception"]


def test_exception_with_its_cause_and_notes(run: Any) -> None:
    program = (
        BAD
        + """
try:
    1 / 0
except ZeroDivisionError as error:
    bad = Bad("no")
    bad.add_note("in epoch 3")
    raise bad from error
"""
    )
    record = run(program, status=1)
    recorded = exception_of(record)
    assert (recorded["type"], recorded["message"], recorded["notes"]) == ("Bad", "no", ["in epoch 3"])
    assert recorded["bases"] == ["Bad", "Exception", "BaseException"]
    assert [cause["type"] for cause in recorded["causes"]] == ["ZeroDivisionError"]
    assert record["message"]["message"] == "Bad: no"
    assert record["message"]["extraInfo"]["py_callstack"].splitlines()[-1] == "in epoch 3"


@pytest.mark.parametrize(
    ("program", "type_"),
    [
        ("import queue\nqueue.Queue().get_nowait()\n", "_queue.Empty"),
        ("raise StopIteration\n", "StopIteration"),
        (BAD + "import sys\nsys.excepthook = lambda *error: None\nraise Bad\n", "Bad"),
        (BAD + "class Odd(Bad):\n    def __str__(self): raise ValueError\nraise Odd\n", "Odd"),
    ],
)
def test_exceptions_of_any_name_and_hook(run: Any, program: str, type_: str) -> None:
    assert exception_of(run(program, status=1))["type"] == type_


def test_group_has_its_parts(run: Any) -> None:
    recorded = exception_of(run("raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])\n", status=1))
    assert [(part["type"], part["message"]) for part in recorded["parts"]] == [("ValueError", "a"), ("KeyError", "'b'")]


@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        ("import sys\nsys.exit('config is wrong')\n", 1, "config is wrong"),
        ("raise SystemExit('config is wrong')\n", 1, "config is wrong"),
        ("exit({'lr': 'wrong'})\n", 1, "{'lr': 'wrong'}"),
        (TEE + "raise SystemExit('config is wrong')\n", 1, "config is wrong"),
        ("import sys\nprint('warning', file=sys.stderr)\nraise SystemExit(1)\n", 1, None),
        ("import sys\nsys.stderr.write('warning')\nsys.exit(1)\n", 1, None),
        (CAUGHT + "sys.exit(1)\n", 1, None),
        (PATCHED + "raise SystemExit('config is wrong')\n", 1, "config is wrong"),
        (AT_EXIT + "sys.exit(1)\n", 1, None),
        (AT_EXIT + "raise SystemExit(1)\n", 1, None),
        ("import sys\ntry:\n    raise KeyError\nexcept KeyError:\n    sys.exit(4)\n", 4, None),
        ("raise SystemExit(3)\n", 3, None),
        ("pass\n", 0, None),
    ],
)
def test_exit_is_no_exception(run: Any, program: str, status: int, text: str | None) -> None:
    assert run(program, status=status)["trainyard"] == {"exit": text}


def test_process_that_ends_at_once_leaves_no_record(run: Any) -> None:
    assert run("import os\nos._exit(3)\n", status=3) is None


def test_processes_of_the_program_leave_no_record(run: Any) -> None:
    program = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'raise ValueError'])\n"
        "if os.fork() == 0:\n    raise KeyError\n"
        "os.wait()\nos._exit(5)\n"
    )
    assert run(program, status=5) is None


POOL = """
import multiprocessing, signal, sys

def square(number):
    return number * number

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    all_run = context.Barrier(2)
    with context.Pool(2, all_run.wait) as pool:
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_end_although_the_rank_ignores_their_signal(tmp_path: Path, method: str) -> None:
    provide_hook(tmp_path / "packages")
    (tmp_path / "pool.py").write_text(POOL)
    subprocess.run(
        [sys.executable, str(tmp_path / "pool.py"), method],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "packages")},
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        check=True,
        timeout=60,
    )


STARTS = """
import os, signal, subprocess, sys

command = ["/bin/sleep", "60"]
piped = subprocess.Popen(command, stdout=subprocess.PIPE)
spawned = subprocess.Popen(command, close_fds=False)
for started in (piped, spawned):
    started.terminate()
    assert started.wait(20) == -signal.SIGTERM
pid = os.posix_spawn(command[0], command, os.environ)
os.kill(pid, signal.SIGTERM)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
subprocess.run(["/bin/true"], check=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_programs_that_a_rank_starts_end_by_sigterm_which_it_ignores(tmp_path: Path) -> None:
    provide_hook(tmp_path / "packages")
    ended = subprocess.run(
        [sys.executable, "-c", STARTS],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "packages")},
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        timeout=60,
    )
    assert ended.returncode == 7, "the rank itself ignores the signal until it has a handler"


WRITER = """
import os, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("runs")
for step in range(8):
    writer.add_event(Event(step=step, wall_time=1.0))
"""


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("raise KeyboardInterrupt", -signal.SIGINT), ("sys.exit(3)", 3), ("writer.close()", 0)]
)
def test_events_that_a_writer_holds_at_the_end_are_written(tmp_path: Path, end: str, status: int) -> None:
    provide_hook(tmp_path / "hook")
    command = [sys.executable, "-c", WRITER + end]
    ended = subprocess.run(command, env={"PYTHONPATH": str(tmp_path / "hook")}, cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert ended.returncode == status
    (path,) = (tmp_path / "runs").iterdir()
    assert [event.step for event in EventFileLoader(str(path)).Load() if not event.file_version] == list(range(8))


def test_a_writer_that_hangs_does_not_keep_the_program_from_its_end(tmp_path: Path) -> None:
    provide_hook(tmp_path / "hook")
    command = [sys.executable, "-c", WRITER + "writer.flush = lambda: time.sleep(600)"]
    assert subprocess.run(command, env={"PYTHONPATH": str(tmp_path / "hook")}, cwd=tmp_path, timeout=60).returncode == 0


def test_hidden_module_of_the_site_runs(run: Any) -> None:
    record = run(
        "import builtins\nraise ValueError(builtins.site)\n",
        status=1,
        before={"site": "import builtins\nbuiltins.site = 'ours'\n"},
    )
    assert exception_of(record)["message"] == "ours"
