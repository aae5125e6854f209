"""Verdicts from facts."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, get_args

import pytest

from service.jobs.states import ACTIVE, check_transition
from service.reconciler.decide import MAX_BARREN, NOTHING, REQUEUED, UNLISTED, Facts, Verdict, decide
from service.reconciler.run_dir import Unclaimed
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import Desired
from trainyard.contract.wire.reports import ExitReason, Failure, FinishRecord

FAILURE = Failure(rank=1, type="ValueError", message="bad\nsecond line")


def finish(reason: ExitReason, **extra: Any) -> FinishRecord:
    return FinishRecord(execution=1, reason=reason, time=datetime(2026, 1, 1, tzinfo=UTC), **extra)


def facts(**changes: Any) -> Facts:
    plain: dict[str, Any] = {
        "status": "running",
        "desired": "run",
        "claimed": True,
        "observation": Observation("ended"),
        "finish": None,
        "retries_left": 2,
        "barren": 0,
        "on_time_limit": "continue",
    }
    return Facts(**{**plain, **changes})


def test_without_an_answer_from_the_scheduler_nothing_is_concluded() -> None:
    for status, desired in product(sorted(ACTIVE), get_args(Desired)):
        if desired != "cancelled" or status not in ("pending", "running", "pausing"):
            assert decide(facts(status=status, desired=desired, observation=None)) == NOTHING


@pytest.mark.parametrize("status", ["pending", "running", "pausing"])
def test_a_cancellation_shows_while_the_scheduler_does_not_answer_and_is_carried_out_after(status: str) -> None:
    waiting = decide(facts(status=status, desired="cancelled", observation=None))
    assert (waiting.status, waiting.cancel, waiting.ended) == ("cancelling", False, False)
    seen = Observation("running")
    heard = decide(facts(status="cancelling", desired="cancelled", observation=seen, said=waiting.message))
    assert heard.cancel
    assert heard.message == "asked to stop; waiting until nothing of it runs any more"


def test_a_requeue_is_told_from_a_preemption() -> None:
    pending = Observation("pending", "waiting for Slurm: (BeginTime)")
    assert decide(facts(observation=pending, claimed_seconds=30.0)) == Verdict(message=REQUEUED)
    after = decide(facts(finish=finish("preempted"), said=REQUEUED))
    assert after.message == "to be continued from the last checkpoint: it was requeued by an operator or by the site"


def test_an_answer_from_before_the_claim_is_no_requeue() -> None:
    assert decide(facts(observation=Observation("pending", "(Priority)"), claimed_seconds=5.0)) == NOTHING


def test_a_suspended_job_says_so_until_it_runs_again() -> None:
    words = "suspended in Slurm (by an operator or by gang scheduling); it goes on by `scontrol resume 7`"
    stopped = Observation("running", words, suspended=True)
    verdict = decide(facts(observation=stopped, said="running on n1"))
    assert verdict == Verdict(message=words)
    assert decide(facts(observation=Observation("running"), said=words)).message == (
        "running again; it is no longer suspended"
    )
    assert decide(facts(observation=Observation("running"), said="running on n1")) == NOTHING
    assert decide(facts(observation=stopped, desired="cancelled")).cancel


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("completed", "succeeded", "completed"),
        ("rejected", "failed", "rejected"),
        ("preempted", "queued", None),
        ("time_limit", "queued", None),
        ("error", "queued", None),
        ("out_of_memory", "queued", None),
        ("stalled", "queued", None),
        ("user_cancelled", "cancelled", "cancelled_outside"),
    ],
)
def test_the_last_word_decides(reason: ExitReason, status: str, why: str | None) -> None:
    verdict = decide(facts(finish=finish(reason)))
    assert (verdict.status, verdict.reason, verdict.ended) == (status, why, True)


@pytest.mark.parametrize("reason", ["error", "out_of_memory", "stalled"])
def test_an_error_without_retries_left_is_the_end_and_names_the_rank(reason: ExitReason) -> None:
    verdict = decide(facts(finish=finish(reason, failure=FAILURE), retries_left=0))
    assert (verdict.status, verdict.reason) == ("failed", reason)
    assert verdict.message == "rank 1: ValueError: bad"
    assert verdict.failure == FAILURE


def test_an_error_with_retries_left_spends_one() -> None:
    verdict = decide(facts(finish=finish("error", failure=FAILURE), retries_left=1))
    assert (verdict.status, verdict.spends_retry) == ("queued", True)


def test_an_error_that_would_happen_again_is_the_end_at_once() -> None:
    verdict = decide(facts(finish=finish("error", failure=FAILURE.model_copy(update={"final": True})), retries_left=9))
    assert (verdict.status, verdict.reason) == ("failed", "error")


def test_a_continuation_spends_no_retry() -> None:
    assert not decide(facts(finish=finish("preempted"))).spends_retry


def test_an_end_without_a_last_word_is_continued() -> None:
    verdict = decide(facts())
    assert (verdict.status, verdict.exit_reason) == ("queued", "node_failure")


def test_what_the_scheduler_knows_of_the_end_is_passed_on() -> None:
    verdict = decide(facts(observation=Observation("ended", "could not be started: no such file")))
    assert "could not be started: no such file" in (verdict.message or "")


def test_pausing_a_running_job_never_kills_it() -> None:
    assert not decide(facts(desired="paused", observation=Observation("running"))).cancel
    assert decide(facts(status="pending", claimed=False, desired="paused", observation=Observation("pending"))).cancel


@pytest.mark.parametrize("reason", ["preempted", "time_limit", None])
def test_three_continuations_without_a_newer_checkpoint_end_it(reason: ExitReason | None) -> None:
    last = finish(reason) if reason else None
    assert decide(facts(finish=last, barren=MAX_BARREN - 1)).status == "queued"
    ended = decide(facts(finish=last, barren=MAX_BARREN))
    assert (ended.status, ended.reason) == ("failed", "retries_exhausted")
    assert "3 times in a row without a newer checkpoint" in (ended.message or "")


@pytest.mark.parametrize("reason", ["preempted", "time_limit"])
def test_slurms_timeout_is_a_time_limit_whatever_the_worker_took_it_for(reason: ExitReason) -> None:
    seen = Observation("ended", "Slurm: TIMEOUT", ended_as="time_limit")
    assert decide(facts(finish=finish(reason), observation=seen)).exit_reason == "time_limit"


def test_who_gives_up_says_what_ended_each_attempt_and_what_helps() -> None:
    alike = decide(facts(finish=finish("time_limit"), barren=MAX_BARREN, former=("time_limit", "time_limit")))
    assert alike.message is not None
    assert alike.message.startswith("its time limit was reached, 3 times in a row without a newer checkpoint; ")
    assert "resources.time_limit_minutes" in alike.message
    assert "preempted" not in alike.message
    mixed = decide(facts(finish=finish("preempted"), barren=MAX_BARREN, former=("time_limit", "node_failure")))
    assert mixed.message is not None
    ends = "its time limit was reached, then its processes ended without a last word, then it was preempted"
    assert f"3 attempts in a row ended ({ends})" in mixed.message
    assert "a partition or qos whose jobs are not preempted" in mixed.message


def test_who_never_began_says_why_in_words_and_as_its_error() -> None:
    why = Unclaimed(reason="execve(): /venv/bin/python: No such file or directory")
    changes = {"status": "pending", "claimed": False, "unclaimed": why, "observation": Observation("ended", "FAILED")}
    assert why.reason in (decide(facts(**changes)).message or "")
    over = decide(facts(**changes, barren=MAX_BARREN, former=("node_failure", "node_failure")))
    assert why.reason in (over.message or "")
    assert "checkpoint" not in (over.message or "")
    assert over.failure is not None
    assert over.failure.message == why.reason
    assert "TRAINYARD_SLURM_PYTHON" in (over.failure.hint or "")


def test_a_node_that_failed_explains_more_than_the_log_of_what_it_had_not_begun() -> None:
    seen = Observation("ended", "Slurm: NODE_FAIL", ended_as="node_failure")
    verdict = decide(facts(claimed=False, unclaimed=Unclaimed(reason="Terminated"), observation=seen))
    assert "a node failed" in (verdict.message or "")


def test_a_worker_that_does_not_reach_the_service_is_not_said_to_come_up() -> None:
    changes = {"status": "pending", "claimed": False, "observation": Observation("running")}
    assert decide(facts(**changes)).message == "started; the worker is coming up"
    assert "TRAINYARD_PUBLIC_URL" in (decide(facts(**changes, unclaimed=Unclaimed(began=True))).message or "")


def test_a_time_limit_can_be_the_end() -> None:
    verdict = decide(facts(finish=finish("time_limit"), on_time_limit="fail"))
    assert (verdict.status, verdict.reason) == ("failed", "time_limit")


def test_cancelling_is_confirmed_only_when_nothing_runs() -> None:
    running = Observation("running")
    asked = decide(facts(desired="cancelled", observation=running))
    assert (asked.status, asked.cancel) == ("cancelling", True)
    again = decide(facts(status="cancelling", desired="cancelled", observation=running))
    assert (again.status, again.cancel) == (None, True)
    over = decide(facts(status="cancelling", desired="cancelled"))
    assert (over.status, over.reason) == ("cancelled", "user_cancelled")


def test_a_run_that_finished_first_wins_over_its_cancellation() -> None:
    verdict = decide(facts(status="cancelling", desired="cancelled", finish=finish("completed")))
    assert verdict.status == "succeeded"


def test_a_vanished_job_is_lost_not_failed_and_comes_back() -> None:
    assert decide(facts(observation=Observation("absent"))).status == "lost"
    assert decide(facts(status="lost", observation=Observation("absent"))) == NOTHING
    assert decide(facts(status="lost", observation=Observation("running"))).status == "running"


def test_a_vanished_job_whose_worker_is_heard_is_not_lost() -> None:
    assert decide(facts(observation=Observation("absent"), heard=True)) == Verdict(message=UNLISTED)
    back = decide(facts(status="lost", observation=Observation("absent"), heard=True))
    assert back == Verdict(status="running", message=UNLISTED)
    assert decide(facts(observation=Observation("running"), said=UNLISTED)).message == "the scheduler knows it again"


def test_a_vanished_job_with_a_last_word_is_not_lost() -> None:
    assert decide(facts(observation=Observation("absent"), finish=finish("completed"))).status == "succeeded"


def test_waiting_is_explained_in_the_schedulers_words() -> None:
    seen = Observation("pending", "behind another")
    assert decide(facts(status="pending", claimed=False, observation=seen)) == Verdict(message="behind another")


def test_a_wish_to_pause_leads_to_paused() -> None:
    running = Observation("running")
    assert decide(facts(desired="paused", observation=running)).status == "pausing"
    assert decide(facts(status="pausing", desired="paused", finish=finish("preempted"))).status == "paused"


def test_every_verdict_is_a_legal_move() -> None:
    """Over all combinations of what can be known, no verdict asks for a move that the table does not have."""
    reasons: list[ExitReason | None] = [None, *get_args(ExitReason)]
    states = ("pending", "running", "ended", "absent")
    for status, desired, claimed, state, reason, left, barren, limit, silent in product(
        sorted(ACTIVE - {"submitting"}),
        get_args(Desired),
        (True, False),
        states,
        reasons,
        (0, 1),
        (0, MAX_BARREN),
        ("continue", "fail"),
        (0.0, 1000.0),
    ):
        known = facts(
            status=status,
            desired=desired,
            claimed=claimed,
            observation=Observation(state),
            finish=finish(reason) if reason else None,
            retries_left=left,
            barren=barren,
            on_time_limit=limit,
            silent_seconds=silent,
            pause_seconds=silent,
        )
        verdict = decide(known)
        if verdict.status is not None:
            check_transition(status, verdict.status, verdict.reason)


@pytest.mark.parametrize(
    ("claimed", "waited", "silent", "cancel"),
    [
        (False, 0, 0, True),
        (True, 0, 0, False),
        (True, 59, 59, False),
        (True, 30, 300, False),
        (True, 300, 30, False),
        (True, 60, 60, True),
        (True, 600, 0, True),
    ],
)
@pytest.mark.parametrize(("status", "desired"), [("running", "paused"), ("pausing", "paused"), ("pausing", "run")])
def test_the_scheduler_ends_a_pausing_run_only_when_its_worker_does_not(
    status: str, desired: str, claimed: bool, waited: float, silent: float, cancel: bool
) -> None:
    known = facts(status=status, desired=desired, claimed=claimed, observation=Observation("running"))
    verdict = decide(replace(known, pause_seconds=waited, silent_seconds=silent))
    assert verdict.cancel is cancel
    assert verdict.status == (None if status == "pausing" else "pausing")


@pytest.mark.parametrize(
    ("word", "ended_as", "status", "why"),
    [
        (None, "cancelled", "cancelled", "cancelled_outside"),
        ("preempted", "cancelled", "cancelled", "cancelled_outside"),
        ("completed", "cancelled", "succeeded", "completed"),
        (None, "preempted", "queued", None),
        (None, "time_limit", "queued", None),
        (None, "node_failure", "queued", None),
        (None, "failed", "queued", None),
        (None, "completed", "queued", None),
        (None, "out_of_memory", "queued", None),
        ("error", "cancelled", "queued", None),
    ],
)
def test_the_scheduler_tells_what_the_worker_cannot(
    word: ExitReason | None, ended_as: EndedAs, status: str, why: str | None
) -> None:
    seen = Observation("ended", ended_as=ended_as)
    verdict = decide(facts(observation=seen, finish=finish(word) if word else None))
    assert (verdict.status, verdict.reason, verdict.ended) == (status, why, True)


def test_too_little_memory_without_a_word_says_what_to_do() -> None:
    verdict = decide(facts(observation=Observation("ended", ended_as="out_of_memory"), retries_left=0))
    assert (verdict.status, verdict.reason) == ("failed", "out_of_memory")
    assert verdict.failure is not None
    assert "memory_gb_per_gpu" in str(verdict.failure.hint)


def test_a_pause_that_takes_back_a_waiting_job_is_a_pause() -> None:
    seen = Observation("ended", ended_as="cancelled")
    assert decide(facts(status="pausing", desired="paused", claimed=False, observation=seen)).status == "paused"


LOST_PEER = Failure(rank=0, type="RuntimeError", message="Connection reset by peer", consequence=True)


def test_a_node_that_vanished_costs_no_retry_and_is_named() -> None:
    gone = Failure(type="NodeVanished", message="node2 vanished", consequence=True)
    verdict = decide(facts(finish=finish("node_failure", failure=gone), retries_left=0))
    assert (verdict.status, verdict.spends_retry, verdict.exit_reason) == ("queued", False, "node_failure")
    assert "node2 vanished" in str(verdict.message)


@pytest.mark.parametrize("said", ["preempted", "error"])
def test_the_scheduler_knows_of_a_dead_node_what_the_ranks_can_not(said: ExitReason) -> None:
    seen = Observation("ended", "Slurm: NODE_FAIL", ended_as="node_failure")
    verdict = decide(facts(finish=finish(said, failure=LOST_PEER), observation=seen, retries_left=0))
    assert (verdict.status, verdict.spends_retry, verdict.exit_reason) == ("queued", False, "node_failure")
    assert "a node failed (Slurm: NODE_FAIL)" in str(verdict.message)


def test_an_error_of_the_program_stays_one_on_a_node_that_fails_later() -> None:
    seen = Observation("ended", "Slurm: NODE_FAIL", ended_as="node_failure")
    verdict = decide(facts(finish=finish("error", failure=FAILURE), observation=seen, retries_left=0))
    assert (verdict.status, verdict.reason) == ("failed", "error")


def test_a_lost_connection_between_healthy_nodes_is_an_error_of_the_program() -> None:
    verdict = decide(facts(finish=finish("error", failure=LOST_PEER), retries_left=0))
    assert (verdict.status, verdict.reason) == ("failed", "error")


ABSENT = Observation("absent")


@pytest.mark.parametrize("status", ["running", "lost", "pending"])
def test_a_cancelled_run_that_nobody_knows_is_over_after_a_silence(status: Any) -> None:
    asked = facts(status=status, desired="cancelled", observation=ABSENT, silent_seconds=599)
    assert decide(asked).status == "cancelling"
    gone = facts(status="cancelling", desired="cancelled", observation=ABSENT, silent_seconds=600)
    assert (decide(gone).status, decide(gone).reason) == ("cancelled", "user_cancelled")


@pytest.mark.parametrize("status", ["lost", "pending"])
def test_a_cancelled_job_that_never_began_is_over_at_once(status: Any) -> None:
    verdict = decide(facts(status=status, desired="cancelled", observation=ABSENT, claimed=False))
    assert (verdict.status, verdict.reason) == ("cancelled", "user_cancelled")
