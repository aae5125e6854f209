"""The transition table: every legal and every illegal transition."""

from itertools import product
from typing import get_args

import pytest

from service.jobs.states import ACTIVE, FINAL_STATUS, TRANSITIONS, IllegalTransitionError, check_transition
from trainyard.contract.wire.jobs import TERMINAL, JobStatus, StatusReason

STATUSES = get_args(JobStatus)
REASON_FOR = {"succeeded": "completed", "failed": "error", "cancelled": "user_cancelled"}

LEGAL = {
    "queued": "submitting failed paused cancelled",
    "submitting": "pending running queued succeeded failed cancelling lost",
    "pending": "running queued succeeded failed pausing cancelling cancelled lost",
    "running": "queued pausing cancelling cancelled succeeded failed lost",
    "pausing": "paused cancelling succeeded failed lost",
    "paused": "queued cancelled",
    "cancelling": "cancelled succeeded failed lost",
    "lost": "queued submitting pending running pausing paused cancelling succeeded failed cancelled",
    "succeeded": "",
    "failed": "queued",
    "cancelled": "queued",
}
"""The design's table, written down a second time: a change of one of them must be a change of both."""


@pytest.mark.parametrize(("source", "target"), list(product(STATUSES, STATUSES)))
def test_transition_is_legal_exactly_where_the_design_table_has_it(source: JobStatus, target: JobStatus) -> None:
    reason = REASON_FOR.get(target)
    if target in LEGAL[source].split():
        check_transition(source, target, reason)  # type: ignore[arg-type]
    else:
        with pytest.raises(IllegalTransitionError, match=f"a job that is {source} cannot become {target}"):
            check_transition(source, target, reason)  # type: ignore[arg-type]


def test_every_status_has_a_row() -> None:
    assert set(TRANSITIONS) == set(STATUSES)


def test_every_reason_has_a_final_status() -> None:
    assert set(FINAL_STATUS) == set(get_args(StatusReason))
    assert set(FINAL_STATUS.values()) == TERMINAL


@pytest.mark.parametrize(("reason", "target"), list(product(get_args(StatusReason), sorted(TERMINAL))))
def test_final_status_requires_one_of_its_reasons(reason: StatusReason, target: JobStatus) -> None:
    if FINAL_STATUS[reason] == target:
        check_transition("running", target, reason)
    else:
        with pytest.raises(IllegalTransitionError):
            check_transition("running", target, reason)


@pytest.mark.parametrize("target", sorted(TERMINAL))
def test_final_status_requires_a_reason(target: JobStatus) -> None:
    with pytest.raises(IllegalTransitionError):
        check_transition("running", target, None)


def test_active_statuses_are_those_the_scheduler_may_know() -> None:
    assert set(STATUSES) - TERMINAL - {"queued", "paused"} == ACTIVE
