"""Who ended an attempt, by the evidence of its end, and what follows for the job."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_args

import pytest

from service.jobs.conditions import Condition
from service.reconciler.decide import decide
from service.reconciler.evidence import Absence, verdict
from service.reconciler.node_exclusion import Fault, node_fault
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import Canceller, EndedAs, Observation
from tests.unit.service.reconciler.test_decide import FAILURE, exit_record, snapshot
from trainyard.contract.wire.reports import ExitReason

ROOT, ADA = Canceller("root", is_administrator=True), Canceller("ada")
DRAINED = {"node_left": True, "message": "Slurm: CANCELLED by 0; node1 is drained: kernel update"}
PROLOG = {"node_left": True, "prolog_failed": True, "message": "Slurm: CANCELLED by 0; node1 is drained: Prolog error"}


@pytest.mark.parametrize(
    ("canceller", "report", "known", "by", "cause"),
    [
        (ADA, {}, {}, "user", "cancelled by ada with `scancel` (Slurm: CANCELLED)"),
        (ADA, PROLOG, {"claimed": False}, "user", "cancelled by ada with `scancel`"),
        (ADA, DRAINED, {}, "user", "cancelled by ada with `scancel`"),
        (ROOT, {}, {}, "user", "cancelled by an administrator (root) with `scancel` (Slurm: CANCELLED)"),
        (ROOT, {"nodes": ()}, {"claimed": False}, "user", "cancelled by an administrator (root)"),
        (ROOT, {}, {"claimed": False}, "site", "cancelled in Slurm before its worker started"),
        (ROOT, {}, {"claimed": False, "unclaimed": UnclaimedAttempt(started=True)}, "user", "an administrator (root)"),
        (ROOT, DRAINED, {}, "site", "its node was taken out of service (Slurm: CANCELLED by 0; node1 is drained: ke"),
        (ROOT, PROLOG, {"claimed": False}, "site", "the prolog of the site failed (Slurm: CANCELLED by 0; node1 is "),
        (ROOT, PROLOG, {}, "site", "its node was taken out of service"),
        (None, PROLOG, {"claimed": False}, "site", "the prolog of the site failed"),
        (None, DRAINED, {"cancelled_before": True}, "site", "its node was taken out of service"),
        (
            None,
            {},
            {"claimed": False, "cancelled_before": True},
            "site",
            "cancelled in Slurm before its worker started",
        ),
        (None, {}, {}, "unknown", "cancelled in Slurm by an unknown user (Slurm: CANCELLED)"),
        (None, {"nodes": ()}, {"claimed": False}, "unknown", "cancelled in Slurm by an unknown user"),
        (None, {}, {"cancelled_before": True}, "user", "cancelled outside Trainyard, such as by `scancel` (Slurm: CA"),
    ],
)
def test_who_cancelled_decides_whether_the_job_goes_on(
    canceller: Canceller | None, report: dict[str, Any], known: dict[str, Any], by: str, cause: str
) -> None:
    plain = {"message": "Slurm: CANCELLED", "nodes": ("node1",), "end_state": "cancelled", "canceller": canceller}
    evidence = snapshot(observation=Observation("ended", **{**plain, **report}), **known)
    judged, decision = verdict(evidence), decide(evidence)
    assert judged.by == by
    assert cause in judged.cause
    assert decision.status == ("cancelled" if by == "user" else "queued")
    assert judged.cause[1:] in (decision.message or "")
    assert decide(replace(evidence, status="cancelling", desired="cancelled")).reason == "user_cancelled"


def test_a_cancellation_by_an_unknown_user_states_how_to_end_the_job() -> None:
    decision = decide(snapshot(observation=Observation("ended", "Slurm: CANCELLED", end_state="cancelled")))
    assert decision.exit_reason == "cancelled_outside"
    assert (decision.message or "").endswith("The next such end cancels the job, and so does `trainyard cancel`.")


def test_a_launch_that_a_worker_has_claimed_did_not_fail() -> None:
    report = Observation("ended", "Slurm: FAILED, JobLaunchFailure", ("node1",), end_state="launch_failed")
    killed, not_launched = snapshot(observation=report), snapshot(observation=report, claimed=False)
    assert verdict(killed).by == "unknown"
    assert verdict(killed).cause.startswith("processes ended without an exit record")
    assert verdict(not_launched).by == "site"
    assert node_fault(killed) is None
    assert node_fault(not_launched) == Fault("node1", "launch_failed", report.message)


RECORDS: list[ExitReason | None] = [None, *get_args(ExitReason)]


@pytest.mark.parametrize("end_state", [None, *get_args(EndedAs)])
def test_only_the_job_and_its_user_end_it(end_state: EndedAs | None) -> None:
    others = product(RECORDS, [True, False], [None, ROOT, ADA], [(), ("node1",)], [True, False])
    for reason, claimed, by, nodes, left in others:
        record = exit_record(reason, failure=FAILURE) if reason else None
        report = Observation("ended", nodes=nodes, end_state=end_state, canceller=by, node_left=left)
        evidence = snapshot(observation=report, exit_record=record, claimed=claimed, retries_left=0, site_ends=50)
        judged, decision = verdict(evidence), decide(evidence)
        if judged.by in ("site", "unknown"):
            assert (decision.status, decision.uses_retry) == ("queued", False)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def absence(*minutes: float) -> Absence:
    judged = Absence(NOON, NOON)
    for minute in minutes:
        judged = judged.again(NOON + timedelta(minutes=minute))
    return judged


@pytest.mark.parametrize(
    ("minutes", "is_certain"),
    [
        ((), False),
        ((2, 4, 6, 8), False),
        ((2, 4, 6, 10), True),
        ((600,), False),
        ((600, 600.1, 600.2, 600.3), False),
        ((2, 4, 6, 8, -1, 10), False),
    ],
)
def test_absence_takes_several_answers_over_ten_minutes(minutes: tuple[float, ...], is_certain: bool) -> None:
    judged = absence(*minutes)
    assert judged.is_certain is is_certain
    unlisted = snapshot(status="pending", claimed=False, observation=Observation("absent"), absence=judged)
    decision = decide(unlisted)
    if is_certain:
        assert (decision.status, decision.ended, decision.cancel) == ("queued", True, True)
        assert (decision.exit_reason, decision.uses_retry) == ("preempted", False)
    else:
        assert (decision.status, decision.ended) == ("lost", False)
        until = f"{judged.since + timedelta(minutes=10):%Y-%m-%d %H:%M} UTC"
        assert decision.condition == Condition("unlisted", {"until": until})
    assert decide(replace(unlisted, desired="paused", status="lost")).status == "paused"
    for started in ({"claimed": True}, {"unclaimed": UnclaimedAttempt(started=True)}):
        assert decide(replace(unlisted, **started)).condition == Condition("lost")
