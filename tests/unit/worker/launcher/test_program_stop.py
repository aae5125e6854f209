"""Which signals the program of a `script` job gets at a stop request, and when it is interrupted and killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.packages import require_program
from tests.support.wait import wait_until
from worker.core.processes import catches
from worker.launcher.program_stop import END_SECONDS, ProgramStop

CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], lambda number, frame: print(signal.Signals(number).name, flush=True))
try:
    print("ready", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("SIGINT", flush=True)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a rank which catches the named signals."""
    children = []

    def started(*names: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", CHILD, *names]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield started
    for child in children:
        child.kill()
        child.communicate()


def stop(
    warning: signal.Signals | None = None,
    *,
    polls: bool = False,
    runs_command: bool = False,
    now: Callable[[], float] = lambda: 0.0,
) -> ProgramStop:
    return ProgramStop(warning, lambda: polls, in_container=False, runs_command=runs_command, now=now)


def next_signal(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("reason", ["user_cancelled", "preempted"])
def test_program_without_handler_is_interrupted_and_then_killed(start: Start, reason: str) -> None:
    child, clock = start(), [0.0]
    made = stop(now=lambda: clock[0])
    made.request([child.pid], reason)
    assert not made.enforce([child.pid], reason, is_over=False)
    assert next_signal(child) == "SIGINT"
    assert made.interrupted
    clock[0] = END_SECONDS + 1
    assert made.enforce([child.pid], reason, is_over=False)


@pytest.mark.parametrize(("reason", "killed"), [("user_cancelled", True), ("preempted", False)])
def test_what_has_no_ranks_yet_is_killed_at_a_cancellation(reason: str, killed: bool) -> None:
    made = stop()
    made.request([], reason)
    assert made.enforce([], reason, is_over=False) is killed


def test_what_has_no_ranks_any_more_ends_by_itself(start: Start) -> None:
    child, made = start("SIGTERM"), stop()
    made.enforce([child.pid], "user_cancelled", is_over=False)
    assert not made.enforce([], "user_cancelled", is_over=False)


def test_program_without_handler_runs_until_the_time_limit(start: Start) -> None:
    child, made = start(), stop()
    made.request([child.pid], "time_limit")
    made.enforce([child.pid], "time_limit", is_over=False)
    assert not made.interrupted
    assert not made.is_answer, "it may complete until then"
    made.enforce([child.pid], "time_limit", is_over=True)
    assert next_signal(child) == "SIGINT"


def test_program_that_catches_sigterm_has_time_to_save(start: Start) -> None:
    child, made = start("SIGTERM"), stop()
    for _ in range(2):
        made.request([child.pid], "time_limit")
        made.enforce([child.pid], "preempted", is_over=False)
    assert next_signal(child) == "SIGTERM"
    assert made.is_answer
    made.enforce([child.pid], "user_cancelled", is_over=True)
    assert next_signal(child) == "SIGINT", "each signal comes once"


@pytest.mark.parametrize("caught", [True, False])
def test_end_at_the_signal_of_the_scheduler_is_an_answer_if_it_was_caught(start: Start, caught: bool) -> None:
    """`mpirun` ends with exit code 1 at Slurm's SIGTERM, before the launcher knows that the job is preempted."""
    child, made = start(*["SIGTERM"] * caught), stop()
    made.observe([child.pid])
    made.observe([])
    assert not made.answers(signalled=False)
    assert made.answers(signalled=True) is caught


def test_program_that_polls_is_not_interrupted(start: Start) -> None:
    child, made = start(), stop(polls=True)
    made.enforce([child.pid], "user_cancelled", is_over=False)
    assert not made.interrupted


def test_named_signal_replaces_sigterm_except_at_a_cancellation(start: Start) -> None:
    child, made = start("SIGUSR1", "SIGTERM"), stop(signal.SIGUSR1)
    made.request([child.pid], "preempted")
    assert next_signal(child) == "SIGUSR1"
    made.request([child.pid], "user_cancelled")
    assert next_signal(child) == "SIGTERM"


def test_program_that_exits_after_its_handler_is_not_interrupted() -> None:
    """Its exit handlers may still run when its signal handlers are gone."""
    program = """
import signal

def save(number, frame):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    print("saved", flush=True)
    signal.pause()

signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
signal.pause()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert next_signal(child) == "ready"
        stopped = stop(signal.SIGUSR1)
        stopped.request([child.pid], "preempted")
        assert next_signal(child) == "saved"
        assert not stopped.enforce([child.pid], "preempted", is_over=False)
        assert not stopped.interrupted
        child.kill()


def test_only_processes_of_a_command_that_handle_a_signal_get_it(start: Start) -> None:
    """A shell has started one that SIGTERM would end."""
    child, made = start("SIGTERM"), stop(runs_command=True)
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        made.request([child.pid, sleeping.pid], "user_cancelled")
        assert next_signal(child) == "SIGTERM"
        made.enforce([child.pid, sleeping.pid], "user_cancelled", is_over=False)
        assert not made.interrupted
        assert sleeping.poll() is None
        sleeping.kill()


@pytest.mark.parametrize(
    ("command", "caught"),
    [("timeout 60 sleep 60", signal.SIGTERM), ("make --eval=wait:;@sleep$${IFS}60 wait", signal.SIGUSR1)],
)
def test_a_program_that_only_starts_others_cannot_save(command: str, caught: signal.Signals) -> None:
    require_program(command.split()[0])
    made = stop(runs_command=True)
    with subprocess.Popen(command.split(), start_new_session=True) as wrapper:
        wait_until(lambda: catches(wrapper.pid, caught))
        made.request([wrapper.pid], "preempted")
        made.enforce([wrapper.pid], "preempted", is_over=False)
        assert made.interrupted
        os.killpg(wrapper.pid, signal.SIGKILL)
