"""Decisions from job snapshots."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, get_args

import pytest

from service.jobs.conditions import Condition
from service.jobs.states import ACTIVE, check_transition
from service.reconciler.decide import (
    MAX_CONTINUATIONS,
    MIN_SITE_ENDS,
    NO_CHANGE,
    Decision,
    decide,
    resumed,
)
from service.reconciler.evidence import Absence, JobSnapshot
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import Desired
from trainyard.contract.wire.reports import ExitReason, Failure, FinishRecord

FAILURE = Failure(rank=1, type="ValueError", message="bad\nsecond line")


def exit_record(reason: ExitReason, **extra: Any) -> FinishRecord:
    return FinishRecord(execution=1, reason=reason, time=datetime(2026, 1, 1, tzinfo=UTC), **extra)


def snapshot(**changes: Any) -> JobSnapshot:
    plain: dict[str, Any] = {
        "status": "running",
        "desired": "run",
        "claimed": True,
        "observation": Observation("ended"),
        "exit_record": None,
        "retries_left": 2,
        "continuations_without_progress": 0,
        "on_time_limit": "continue",
    }
    return JobSnapshot(**{**plain, **changes})


def test_no_conclusion_while_the_scheduler_is_unavailable() -> None:
    for status, desired in product(sorted(ACTIVE), get_args(Desired)):
        if desired != "cancelled" or status not in ("pending", "running", "pausing"):
            assert decide(snapshot(status=status, desired=desired, observation=None)) == NO_CHANGE


@pytest.mark.parametrize("status", ["pending", "running", "pausing"])
def test_cancellation_is_shown_at_once_and_sent_when_slurm_responds(status: str) -> None:
    waiting = decide(snapshot(status=status, desired="cancelled", observation=None))
    assert (waiting.status, waiting.cancel, waiting.ended) == ("cancelling", False, False)
    observation = Observation("running")
    after = decide(
        snapshot(status="cancelling", desired="cancelled", observation=observation, condition="cancel_pending")
    )
    assert waiting.condition == Condition("cancel_pending")
    assert after.cancel
    assert after.condition == Condition("cancelling")


@pytest.mark.fault_scenario(40)
def test_a_requeue_is_no_preemption_and_shows_why_it_waits() -> None:
    pending = Observation("pending", "Waiting in Slurm: held by an administrator (JobHeldAdmin).")
    requeued = decide(snapshot(observation=pending, seconds_since_claim=30.0))
    assert requeued.condition == Condition("requeued", {"details": pending.message})
    assert requeued.new_message
    assert requeued.new_message.endswith(f"ended this one. {pending.message}")
    running = decide(snapshot(observation=Observation("running"), condition="requeued"))
    assert running == NO_CHANGE, "the cause of the end that follows"
    after = decide(snapshot(exit_record=exit_record("preempted"), condition="requeued"))
    assert after.message == "To be continued from the last checkpoint. Cause: requeued by an operator or the site"


def test_an_answer_from_before_the_claim_is_no_requeue() -> None:
    assert decide(snapshot(observation=Observation("pending", "(Priority)"), seconds_since_claim=5.0)) == NO_CHANGE


def test_a_suspended_job_reports_it_until_it_resumes() -> None:
    stopped = Observation("running", "Suspended in Slurm by an operator or by gang scheduling.", suspended=True)
    decision = decide(snapshot(observation=stopped))
    assert decision == Decision(condition=Condition("suspended", {"details": stopped.message}))
    assert decision.new_message == stopped.message
    resumed = decide(snapshot(observation=Observation("running"), condition="suspended"))
    assert resumed == Decision(message="Running: no longer suspended in Slurm.")
    assert decide(snapshot(observation=Observation("running"))) == NO_CHANGE
    assert decide(snapshot(observation=stopped, desired="cancelled")).cancel


def test_a_completing_job_reports_that_slurm_is_cleaning_up() -> None:
    completing = Observation("running", "Slurm is cleaning up after the job (COMPLETING).")
    condition = Condition("cleaning_up", {"details": completing.message})
    assert decide(snapshot(observation=completing)) == Decision(condition=condition)
    assert decide(snapshot(observation=Observation("running"), condition="cleaning_up")).message == "Running."
    assert decide(snapshot(observation=completing, desired="cancelled")).cancel
    ended = decide(snapshot(exit_record=exit_record("completed"), condition="cleaning_up"))
    assert (ended.status, ended.message) == ("succeeded", "Completed all steps.")


def test_an_end_that_nobody_explains_yet_is_shown() -> None:
    unknown = Decision(condition=Condition("end_unknown"))
    assert decide(snapshot(observation=None, condition="cleaning_up"), answered=True) == unknown
    assert decide(snapshot(observation=None, condition="cleaning_up")) == NO_CHANGE, "the scheduler does not answer"
    assert decide(snapshot(observation=None, condition="requeued"), answered=True) == NO_CHANGE, "the cause of the end"
    assert decide(snapshot(observation=Observation("running"), condition="end_unknown")).message
    cancelled = decide(snapshot(observation=None, desired="cancelled"), answered=True)
    assert cancelled.condition == Condition("cancel_pending")


def test_a_run_that_was_stopped_early_has_succeeded_and_reports_why() -> None:
    ended = decide(snapshot(exit_record=exit_record("completed", step=40, best_step=25)))
    assert (ended.status, ended.reason) == ("succeeded", "completed")
    assert ended.message == "Stopped early at step 40: the evaluations did not improve after step 25."


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
def test_the_exit_record_determines_the_status(reason: ExitReason, status: str, why: str | None) -> None:
    decision = decide(snapshot(exit_record=exit_record(reason)))
    assert (decision.status, decision.reason, decision.ended) == (status, why, True)


@pytest.mark.parametrize("reason", ["error", "out_of_memory", "stalled"])
def test_an_error_without_retries_left_fails_and_names_the_rank(reason: ExitReason) -> None:
    decision = decide(snapshot(exit_record=exit_record(reason, failure=FAILURE), retries_left=0))
    assert (decision.status, decision.reason) == ("failed", reason)
    assert decision.message == "rank 1: ValueError: bad"
    assert decision.failure == FAILURE


def test_an_error_with_retries_left_uses_one() -> None:
    decision = decide(snapshot(exit_record=exit_record("error", failure=FAILURE), retries_left=1))
    assert (decision.status, decision.uses_retry) == ("queued", True)


def test_a_final_error_fails_at_once() -> None:
    decision = decide(
        snapshot(exit_record=exit_record("error", failure=FAILURE.model_copy(update={"final": True})), retries_left=9)
    )
    assert (decision.status, decision.reason) == ("failed", "error")


def test_a_continuation_uses_no_retry() -> None:
    assert not decide(snapshot(exit_record=exit_record("preempted"))).uses_retry


def test_an_end_without_an_exit_record_is_continued() -> None:
    decision = decide(snapshot())
    assert (decision.status, decision.exit_reason) == ("queued", "node_failure")


def test_the_message_includes_the_schedulers_reason() -> None:
    decision = decide(snapshot(observation=Observation("ended", "Start failed: no such file")))
    assert "Start failed: no such file" in (decision.message or "")


@pytest.mark.parametrize("reason", ["completed", "preempted", "error", None])
def test_a_deleted_run_directory_fails_the_job(reason: ExitReason | None) -> None:
    known = snapshot(exit_record=exit_record(reason) if reason else None, run_dir_vanished=True)
    decision = decide(known)
    assert (decision.status, decision.reason, decision.exit_reason) == ("failed", "error", "error")
    assert (decision.message or "").startswith("The run directory was deleted: reports that had not reached")
    assert decide(replace(known, desired="cancelled")).status in ("cancelled", "cancelling", "succeeded")


def test_a_job_that_the_controller_removed_is_continued() -> None:
    decision = decide(snapshot(observation=Observation("ended", "Slurm: CANCELLED by slurmctld", end_state="dropped")))
    assert (decision.status, decision.exit_reason, decision.uses_retry) == ("queued", "preempted", False)
    assert "Cause: removed by Slurm's controller, not by a user" in (decision.message or "")


def test_a_signal_without_a_preemption_is_not_called_one() -> None:
    killed = Observation("ended", "Slurm: FAILED, exit code 0:9", end_state="failed")
    decision = decide(snapshot(exit_record=exit_record("preempted"), observation=killed))
    assert (decision.status, decision.uses_retry) == ("queued", False)
    assert "Cause: ended by a signal that is no preemption (Slurm: FAILED, exit code 0:9)" in (decision.message or "")
    by_itself = Observation("ended", "Slurm: COMPLETED, exit code 0:0", end_state="completed")
    decision = decide(snapshot(exit_record=exit_record("preempted"), observation=by_itself))
    assert "Cause: requested to stop by a signal, as before a preemption (Slurm: COMPLETED" in (decision.message or "")
    gone = Observation("ended", "Slurm: PREEMPTED", end_state="preempted")
    decision = decide(snapshot(exit_record=exit_record("preempted"), observation=gone))
    assert "Cause: preempted" in (decision.message or "")


def test_pausing_a_running_job_never_kills_it() -> None:
    assert not decide(snapshot(desired="paused", observation=Observation("running"))).cancel
    assert decide(
        snapshot(status="pending", claimed=False, desired="paused", observation=Observation("pending"))
    ).cancel


def test_three_time_limits_without_a_newer_checkpoint_end_it() -> None:
    last = exit_record("time_limit")
    second = decide(snapshot(exit_record=last, continuations_without_progress=MAX_CONTINUATIONS - 2))
    assert (second.status, second.continuations) == ("queued", MAX_CONTINUATIONS - 1)
    third = snapshot(exit_record=last, continuations_without_progress=MAX_CONTINUATIONS - 1)
    ended = decide(third)
    assert (ended.status, ended.reason) == ("failed", "retries_exhausted")
    assert "3 attempts in a row reached the time limit without a newer checkpoint" in (ended.message or "")
    assert "resources.time_limit_minutes" in (ended.message or "")
    progressed = decide(replace(third, progressed=True))
    assert (progressed.status, progressed.continuations) == ("queued", 0)


@pytest.mark.parametrize("reason", ["preempted", "node_failure", None])
def test_cluster_ends_no_job_before_its_patience_is_over(reason: ExitReason | None) -> None:
    last = exit_record(reason) if reason else None
    many = snapshot(exit_record=last, site_ends=50, continuations_without_progress=2, seconds_of_site_ends=86400.0)
    decision = decide(many)
    assert (decision.status, decision.continuations) == ("queued", 2), "such an end is no lack of progress"
    ended = decide(replace(many, site_patience_seconds=86400.0))
    assert (ended.status, ended.reason) == ("failed", "retries_exhausted")
    assert "50 attempts in a row ended soon after their start within 1.0 days" in (ended.message or "")
    few = replace(many, site_patience_seconds=86400.0, site_ends=MIN_SITE_ENDS - 1)
    assert decide(few).status == "queued", "it has waited in the queue"


@pytest.mark.parametrize("reason", ["preempted", "time_limit"])
def test_slurms_timeout_overrides_the_workers_reason(reason: ExitReason) -> None:
    observation = Observation("ended", "Slurm: TIMEOUT", end_state="time_limit")
    assert decide(snapshot(exit_record=exit_record(reason), observation=observation)).exit_reason == "time_limit"


def test_a_startup_error_is_in_the_message_and_the_failure() -> None:
    why = UnclaimedAttempt(startup_error="execve(): /venv/bin/python: No such file or directory")
    changes = {"status": "pending", "claimed": False, "unclaimed": why, "observation": Observation("ended", "FAILED")}
    first = decide(snapshot(**changes))
    assert why.startup_error in (first.message or "")
    over = decide(snapshot(**changes, site_ends=MIN_SITE_ENDS, seconds_of_site_ends=1e9))
    assert over.status == "failed"
    assert first.failure == over.failure
    assert why.startup_error in (over.message or "")
    assert "checkpoint" not in (over.message or "")
    assert over.failure is not None
    assert over.failure.message == why.startup_error
    assert "TRAINYARD_SLURM_PYTHON" in (over.failure.hint or "")


def test_a_node_failure_outranks_a_startup_error() -> None:
    observation = Observation("ended", "Slurm: NODE_FAIL", end_state="node_failure")
    decision = decide(
        snapshot(claimed=False, unclaimed=UnclaimedAttempt(startup_error="Terminated"), observation=observation)
    )
    assert "node failure" in (decision.message or "")


def test_an_unreachable_worker_is_reported() -> None:
    changes = {"status": "pending", "claimed": False, "observation": Observation("running")}
    assert decide(snapshot(**changes)).condition == Condition("started")
    unreachable = decide(snapshot(**changes, unclaimed=UnclaimedAttempt(started=True)))
    assert unreachable.condition == Condition("worker_unreachable")


def test_a_silent_running_worker_is_reported_until_it_returns() -> None:
    contact = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
    running = {"observation": Observation("running"), "last_contact": contact}
    assert decide(snapshot(**running, seconds_since_contact=59.0)) == NO_CHANGE
    silent = decide(snapshot(**running, seconds_since_contact=60.0))
    assert silent.condition == Condition("silent", {"since": "2026-01-01 09:30:00 UTC"})
    assert (silent.status, silent.cancel, silent.ended) == (None, False, False)
    after = decide(snapshot(**running, seconds_since_contact=1.0, condition="silent"))
    assert after == Decision(message="Running: heartbeats arrive again.")
    pending = {"status": "pending", "claimed": False, "condition": "started"}
    assert decide(snapshot(**running, **pending, seconds_since_contact=600.0)).condition == Condition("started")


def test_a_time_limit_can_fail_the_job() -> None:
    decision = decide(snapshot(exit_record=exit_record("time_limit"), on_time_limit="fail"))
    assert (decision.status, decision.reason) == ("failed", "time_limit")


def test_cancelling_is_confirmed_only_when_nothing_runs() -> None:
    running = Observation("running")
    first = decide(snapshot(desired="cancelled", observation=running))
    assert (first.status, first.cancel) == ("cancelling", True)
    again = decide(snapshot(status="cancelling", desired="cancelled", observation=running))
    assert (again.status, again.cancel) == (None, True)
    over = decide(snapshot(status="cancelling", desired="cancelled"))
    assert (over.status, over.reason) == ("cancelled", "user_cancelled")


def test_a_completed_run_wins_over_its_cancellation() -> None:
    decision = decide(snapshot(status="cancelling", desired="cancelled", exit_record=exit_record("completed")))
    assert decision.status == "succeeded"


def test_an_absent_job_is_lost_and_revives() -> None:
    assert decide(snapshot(observation=Observation("absent"))).status == "lost"
    assert decide(snapshot(status="lost", observation=Observation("absent"))) == NO_CHANGE
    assert decide(snapshot(status="lost", observation=Observation("running"))).status == "running"


@pytest.mark.parametrize("claimed", [True, False])
def test_a_single_answer_without_a_job_concludes_nothing(claimed: bool) -> None:
    once = Observation("absent", confirmed=False)
    absence = Absence(*[datetime(2026, 1, 1, tzinfo=UTC)] * 2)
    for status, desired in (("pending", "run"), ("running", "run"), ("pausing", "paused"), ("lost", "run")):
        known = snapshot(status=status, desired=desired, observation=once, claimed=claimed, absence=absence)
        assert decide(known) == NO_CHANGE


def test_an_absent_job_with_heartbeats_is_not_lost() -> None:
    assert decide(snapshot(observation=Observation("absent"), has_recent_heartbeat=True)) == Decision(
        condition=Condition("not_in_queue")
    )
    back = decide(snapshot(status="lost", observation=Observation("absent"), has_recent_heartbeat=True))
    assert back == Decision(status="running", condition=Condition("not_in_queue"))
    assert (
        decide(snapshot(observation=Observation("running"), condition="not_in_queue")).message
        == "Running: the scheduler lists the job again."
    )


def test_an_absent_job_with_an_exit_record_is_not_lost() -> None:
    assert (
        decide(snapshot(observation=Observation("absent"), exit_record=exit_record("completed"))).status == "succeeded"
    )


def test_a_pending_job_shows_the_schedulers_message() -> None:
    observation = Observation("pending", "behind another")
    assert decide(snapshot(status="pending", claimed=False, observation=observation)) == Decision(
        condition=Condition("in_queue", {"details": "behind another"})
    )


def test_a_pause_request_leads_to_paused() -> None:
    running = Observation("running")
    assert decide(snapshot(desired="paused", observation=running)).status == "pausing"
    assert decide(snapshot(status="pausing", desired="paused", exit_record=exit_record("preempted"))).status == "paused"


def test_every_decision_is_a_legal_transition() -> None:
    """For all combinations of the snapshot's values, every decision is a transition that the table allows."""
    reasons: list[ExitReason | None] = [None, *get_args(ExitReason)]
    states = ("pending", "running", "ended", "absent")
    for status, desired, claimed, state, reason, left, without_progress, limit, silent in product(
        sorted(ACTIVE - {"submitting"}),
        get_args(Desired),
        (True, False),
        states,
        reasons,
        (0, 1),
        (0, MAX_CONTINUATIONS),
        ("continue", "fail"),
        (0.0, 1000.0),
    ):
        known = snapshot(
            status=status,
            desired=desired,
            claimed=claimed,
            observation=Observation(state),
            exit_record=exit_record(reason) if reason else None,
            retries_left=left,
            continuations_without_progress=without_progress,
            on_time_limit=limit,
            seconds_since_contact=silent,
            seconds_since_pause=silent,
        )
        decision = decide(known)
        if decision.status is not None:
            check_transition(status, decision.status, decision.reason)


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
def test_a_pausing_run_is_cancelled_only_if_its_worker_does_not_stop(
    status: str, desired: str, claimed: bool, waited: float, silent: float, cancel: bool
) -> None:
    known = snapshot(status=status, desired=desired, claimed=claimed, observation=Observation("running"))
    decision = decide(replace(known, seconds_since_pause=waited, seconds_since_contact=silent))
    assert decision.cancel is cancel
    assert decision.status == (None if status == "pausing" else "pausing")


@pytest.mark.parametrize(
    ("word", "end_state", "status", "why"),
    [
        (None, "cancelled", "queued", None),
        ("preempted", "cancelled", "queued", None),
        ("completed", "cancelled", "succeeded", "completed"),
        (None, "dropped", "queued", None),
        ("preempted", "dropped", "queued", None),
        (None, "preempted", "queued", None),
        (None, "time_limit", "queued", None),
        (None, "node_failure", "queued", None),
        (None, "failed", "queued", None),
        (None, "completed", "queued", None),
        (None, "out_of_memory", "queued", None),
        ("error", "cancelled", "queued", None),
    ],
)
def test_the_scheduler_overrides_what_a_worker_cannot_know(
    word: ExitReason | None, end_state: EndedAs, status: str, why: str | None
) -> None:
    observation = Observation("ended", end_state=end_state)
    decision = decide(snapshot(observation=observation, exit_record=exit_record(word) if word else None))
    assert (decision.status, decision.reason, decision.ended) == (status, why, True)


def test_out_of_memory_without_a_record_has_a_hint() -> None:
    decision = decide(snapshot(observation=Observation("ended", end_state="out_of_memory"), retries_left=0))
    assert (decision.status, decision.reason) == ("failed", "out_of_memory")
    assert decision.failure is not None
    assert "memory_gb_per_gpu" in str(decision.failure.hint)


def test_pausing_a_pending_job_ends_as_paused() -> None:
    observation = Observation("ended", end_state="cancelled")
    assert (
        decide(snapshot(status="pausing", desired="paused", claimed=False, observation=observation)).status == "paused"
    )


LOST_PEER = Failure(rank=0, type="RuntimeError", message="Connection reset by peer", consequence=True)


def test_a_node_failure_uses_no_retry_and_names_the_node() -> None:
    gone = Failure(type="NodeVanished", message="node2 vanished", consequence=True)
    decision = decide(snapshot(exit_record=exit_record("node_failure", failure=gone), retries_left=0))
    assert (decision.status, decision.uses_retry, decision.exit_reason) == ("queued", False, "node_failure")
    assert "node2 vanished" in str(decision.message)


@pytest.mark.parametrize("reported", ["preempted", "error"])
def test_slurms_node_failure_overrides_a_lost_peer(reported: ExitReason) -> None:
    observation = Observation("ended", "Slurm: NODE_FAIL", end_state="node_failure")
    decision = decide(
        snapshot(exit_record=exit_record(reported, failure=LOST_PEER), observation=observation, retries_left=0)
    )
    assert (decision.status, decision.uses_retry, decision.exit_reason) == ("queued", False, "node_failure")
    assert "node failure (Slurm: NODE_FAIL)" in str(decision.message)


def test_a_node_failure_before_the_start_is_not_blamed_on_a_node() -> None:
    observation = Observation("ended", "Slurm: NODE_FAIL", end_state="node_failure")
    message = decide(snapshot(status="pending", claimed=False, observation=observation)).message or ""
    assert "Cause: ended by Slurm before it started (Slurm: NODE_FAIL)" in message


def test_a_program_error_remains_one_on_a_failing_node() -> None:
    observation = Observation("ended", "Slurm: NODE_FAIL", end_state="node_failure")
    decision = decide(
        snapshot(exit_record=exit_record("error", failure=FAILURE), observation=observation, retries_left=0)
    )
    assert (decision.status, decision.reason) == ("failed", "error")


def test_a_lost_peer_on_healthy_nodes_is_a_program_error() -> None:
    decision = decide(snapshot(exit_record=exit_record("error", failure=LOST_PEER), retries_left=0))
    assert (decision.status, decision.reason) == ("failed", "error")


ABSENT = Observation("absent")


@pytest.mark.parametrize("status", ["running", "lost", "pending"])
def test_a_cancelled_absent_run_ends_after_the_contact_timeout(status: Any) -> None:
    waiting = snapshot(status=status, desired="cancelled", observation=ABSENT, seconds_since_contact=599)
    assert decide(waiting).status == "cancelling"
    gone = snapshot(status="cancelling", desired="cancelled", observation=ABSENT, seconds_since_contact=600)
    assert (decide(gone).status, decide(gone).reason) == ("cancelled", "user_cancelled")


@pytest.mark.parametrize("status", ["lost", "pending"])
def test_a_cancelled_unclaimed_job_ends_at_once(status: Any) -> None:
    decision = decide(snapshot(status=status, desired="cancelled", observation=ABSENT, claimed=False))
    assert (decision.status, decision.reason) == ("cancelled", "user_cancelled")
    assert decision.message == "Cancelled before the attempt started."


def test_resumed_program_is_not_announced_as_run_from_the_start() -> None:
    assert [resumed(step).message for step in (None, 7)] == [
        "Resumed. The next attempt runs from the start, or from what its program saved.",
        "Resumed. The next attempt runs from the checkpoint of step 7.",
    ]
