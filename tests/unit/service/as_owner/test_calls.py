"""The service's side of the helper, with stand-ins for the helper."""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.as_owner import calls as owner_calls_module
from service.as_owner.accounts import Account, Accounts
from service.as_owner.calls import NoAnswerError, NotBegunError, OperationError, OwnerCalls
from tests.support.wait import wait_until

HERE = Account(os.getuid(), os.getgid(), "me", "/")


class ThisAccount(Accounts):
    """Every uid is the one of this process, so that a helper can be started without any right."""

    def get(self, uid: int) -> Account:
        return HERE


Helper = Callable[[str], OwnerCalls]


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """Return the calls of a helper that is this Python code, started by a sudo that only leaves its options out."""
    monkeypatch.setattr(owner_calls_module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(owner_calls_module, "_END_SECONDS", 0.2)
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nshift 4; exec "$@"\n')

    def make(code: str) -> OwnerCalls:
        program = tmp_path / "helper"
        program.write_text(f"#!{sys.executable} -SE\nimport json, os, sys, time\nask = json.loads(input())\n{code}\n")
        for path in (sudo, program):
            path.chmod(0o755)
        return OwnerCalls(ThisAccount(1000), program, str(sudo))

    return make


def test_the_result_is_what_the_helper_answers(helper: Helper) -> None:
    calls = helper("print('begun'); print(json.dumps({'result': {'got': ask['x'], 'as': ask['operation']}}))")
    assert calls.call(7, "write", {"x": "y" * 500_000}, 10) == {"got": "y" * 500_000, "as": "write"}


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("sys.exit('sudo: a password is required')", NotBegunError, "a password is required"),
        ("print('something else'); print('begun')", NotBegunError, "did not begin"),
        ("print('begun'); sys.exit('killed')", NoAnswerError, "killed"),
        ("print('begun'); print('[' * 100000)", NoAnswerError, "without an answer"),
        ("print('begun'); print('[1]')", NoAnswerError, "not valid"),
        ("print('begun'); print(json.dumps({'result': 3}))", NoAnswerError, "not valid"),
        ("print('begun'); print(json.dumps({'error': 'PermissionError: \\x1b[31mno'}))", OperationError, r"\?\[31mno"),
        ("print('begun'); sys.stdout.write('x' * 20_000_000)", NoAnswerError, "no valid answer"),
    ],
)
def test_an_error_states_what_is_known(helper: Helper, code: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        helper(code).call(7, "write", {}, 10)


def test_a_missing_helper_did_not_begin(helper: Helper, tmp_path: Path) -> None:
    calls = helper("")
    calls.helper.unlink()
    with pytest.raises(NotBegunError, match="did not begin"):
        calls.call(7, "write", {}, 10)
    calls.sudo = str(tmp_path / "missing")
    with pytest.raises(NotBegunError, match="cannot be started"):
        calls.call(7, "write", {}, 10)


def test_a_silent_helper_is_requested_to_end(helper: Helper, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    calls = helper(f"print('begun', flush=True); open({str(mark)!r}, 'w').write(sys.stdin.read(1)); time.sleep(60)")
    begun = time.monotonic()
    with pytest.raises(NoAnswerError, match="within 0 seconds"):
        calls.call(7, "write", {}, 0.3)
    assert time.monotonic() - begun < 10
    assert mark.read_text() == "K"
    for process in psutil.Process().children():
        process.kill()


def test_a_child_that_holds_the_output_open_does_not_hold_the_service(helper: Helper) -> None:
    calls = helper("print('begun', flush=True); os.fork() or time.sleep(30)")
    begun = time.monotonic()
    with pytest.raises(NoAnswerError):
        calls.call(7, "write", {}, 0.3)
    assert time.monotonic() - begun < 20


def test_what_is_left_after_a_removal_is_bounded(helper: Helper) -> None:
    calls = helper("print('begun'); print(json.dumps({'result': {'left': ['x' * 9000] * 100}}))")
    assert calls.remove(7, Path("/runs"), "job_1", ["."]) == ["x" * 300] * 10


def is_locked(lock: Path) -> bool:
    handle = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    """Yield a descriptor that holds a lock."""
    handle = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield handle
    os.close(handle)


def test_what_is_held_is_open_until_the_helper_has_ended_and_not_in_it(
    helper: Helper, lock: int, tmp_path: Path
) -> None:
    code = (
        f"print('begun', flush=True); open({str(tmp_path / 'began')!r}, 'w').close()\n"
        "names = [os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')]\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "print(json.dumps({'result': {'open': names}}))"
    )
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(helper(code).call(7, "start", {}, 20, held=lock)))
    thread.start()
    wait_until((tmp_path / "began").exists, 10, "the helper")
    os.dup2(os.open(os.devnull, os.O_RDONLY), lock)  # As if the service had ended: its descriptor is closed.
    assert is_locked(tmp_path / "lock")
    (tmp_path / "go").touch()
    thread.join(10)
    assert not [name for name in answers[0]["open"] if name.endswith("/lock")], answers
    wait_until(lambda: not is_locked(tmp_path / "lock"), 10, "the end of the keeper")


def test_a_stopped_helper_is_ended_and_what_it_held_is_released(helper: Helper, lock: int, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); print('begun', flush=True); os.kill(os.getpid(), 19)"
    with pytest.raises(NoAnswerError):
        helper(code).call(7, "start", {}, 0.5, held=lock)
    os.dup2(os.open(os.devnull, os.O_RDONLY), lock)
    wait_until(lambda: not is_locked(tmp_path / "lock"), 10, "the end of the keeper")
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_an_owner_whose_calls_hang_delays_those_of_others_briefly(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_calls_module, "_BRIEF_SECONDS", 0.2)
    calls, over = helper(""), threading.Event()
    with pytest.raises(NoAnswerError, match="uid 7 takes more than"):
        calls.briefly(7, lambda: over.wait(30))
    with pytest.raises(NoAnswerError, match="an earlier call as uid 7"):
        calls.briefly(7, lambda: True)
    assert calls.briefly(8, lambda: "done") == "done"
    over.set()
    wait_until(lambda: not calls._slots._used, 10, "the end of the call")
    assert calls.briefly(7, lambda: "done") == "done"
