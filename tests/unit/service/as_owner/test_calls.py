"""The service's side of the helper, with stand-ins for the helper."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from service.as_owner import calls as owner_calls_module
from service.as_owner.accounts import Account, Accounts
from service.as_owner.calls import NoAnswerError, NotBegunError, OperationError, OwnerCalls

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
