"""Answers of commands that may hang."""

import threading
import time

import pytest
from structlog.testing import capture_logs

from service.scheduler.base import NoAnswerYetError, SchedulerUnavailableError
from service.scheduler.slurm import late_answers
from service.scheduler.slurm.late_answers import CallsPerJob, LateAnswers
from tests.support.wait import wait_until

ONE, TWO = frozenset({"1"}), frozenset({"2"})


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 0.01)


def test_a_slow_answer_is_given_at_a_later_call() -> None:
    answers, opened = LateAnswers[str]("sacct"), threading.Event()

    def slow() -> str:
        opened.wait(30)
        return "rows"

    for _ in range(2):
        with pytest.raises(SchedulerUnavailableError, match="has not answered yet"):
            answers.ask("poll", ONE, slow)
    opened.set()
    wait_until(lambda: not any(each.name == "late-answer" for each in threading.enumerate()), 30, "the answer")
    answer = answers.ask("poll", TWO, lambda: "others")
    assert (answer.value, answer.question) == ("rows", ONE), "it is about what was asked first"
    assert answers.ask("poll", TWO, lambda: "others").value == "others"


def test_purposes_do_not_take_each_others_answers() -> None:
    answers, opened = LateAnswers[str]("sacct"), threading.Event()
    with pytest.raises(SchedulerUnavailableError):
        answers.ask("poll", ONE, lambda: str(opened.wait(30)))
    assert answers.ask("find", TWO, lambda: "by name").value == "by name"
    opened.set()


def test_an_error_is_raised_and_the_next_call_made() -> None:
    answers = LateAnswers[str]("sacct")

    def fail() -> str:
        raise SchedulerUnavailableError("sacct exited with 1")

    with pytest.raises(SchedulerUnavailableError, match="exited with 1"):
        answers.ask("poll", ONE, fail)
    assert answers.ask("poll", ONE, lambda: "rows").value == "rows"


def test_a_program_that_fails_slowly_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(late_answers.time, "monotonic", lambda: now[0])
    answers = LateAnswers[str]("sacct")

    def hang() -> str:
        now[0] += 20
        raise SchedulerUnavailableError("sacct: timed out")

    with pytest.raises(SchedulerUnavailableError, match="timed out"):
        answers.ask("poll", ONE, hang)
    with pytest.raises(SchedulerUnavailableError, match="once a minute"):
        answers.ask("late", ONE, lambda: "rows")
    now[0] += 60
    assert answers.ask("poll", ONE, lambda: "rows").value == "rows"


def test_all_callers_together_wait_briefly_for_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 2.0)
    answers, opened, now = LateAnswers[str]("sacct"), threading.Event(), [1000.0]
    monkeypatch.setattr(late_answers.time, "monotonic", lambda: now[0])
    waits: list[float] = []

    class NeverDone(late_answers.Future):  # type: ignore[type-arg]
        def result(self, timeout: float | None = None) -> object:
            waits.append(timeout or 0.0)
            now[0] += timeout or 0.0
            raise TimeoutError

    monkeypatch.setattr(late_answers, "Future", NeverDone)
    for _ in range(20):
        with pytest.raises(SchedulerUnavailableError, match="has not answered yet"):
            answers.ask("find", ONE, lambda: str(opened.wait(30)))
    opened.set()
    assert sum(waits) == 2.0


def _fail() -> None:
    raise SchedulerUnavailableError("scancel exited with 1")


def _calls_have_ended() -> bool:
    return not any(each.name == "late-answer" for each in threading.enumerate())


def test_slow_calls_about_many_jobs_delay_a_tick_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 0.2)
    calls, opened = CallsPerJob("scancel", 60), threading.Event()
    guard, running, most, made = threading.Lock(), 0, 0, list[str]()

    def cancel(job: str) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        opened.wait(30)
        with guard:
            running -= 1
            made.append(job)

    jobs = [str(number) for number in range(30)]
    for _ in range(2):
        calls.start_tick()
        started = time.monotonic()
        for job in jobs:
            with pytest.raises(NoAnswerYetError):
                calls.make(job, lambda job=job: cancel(job))  # type: ignore[misc]
        assert time.monotonic() - started < 5, "the jobs wait together, not one after another"
    opened.set()
    wait_until(_calls_have_ended, 30, "the calls")
    assert sorted(made, key=int) == jobs, "one call for each job"
    assert most == 8


def test_a_call_about_a_job_fails_to_its_caller_and_is_made_again() -> None:
    calls, made = CallsPerJob("scancel", 60), list[str]()
    with pytest.raises(SchedulerUnavailableError, match="exited with 1"):
        calls.make("7", _fail)
    for _ in range(2):
        calls.make("7", lambda: made.append("7"))
    assert made == ["7"], "a successful call is not repeated for a while"


def test_a_late_failure_is_logged_and_the_call_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 0.0)
    calls, opened, made = CallsPerJob("scancel", 60), threading.Event(), list[str]()

    def fail_late() -> None:
        opened.wait(30)
        _fail()

    with pytest.raises(NoAnswerYetError):
        calls.make("7", fail_late)
    opened.set()
    wait_until(_calls_have_ended, 30, "the call")
    with capture_logs() as logs:
        calls.start_tick()
    assert [each["error"] for each in logs] == ["scancel exited with 1"]
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 10.0)
    calls.start_tick()
    calls.make("7", lambda: made.append("7"))
    assert made == ["7"]
