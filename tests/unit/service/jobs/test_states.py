"""The transition table: every legal and every illegal transition."""

from itertools import product
from typing import get_args

import pytest

from service.jobs.states import ACTIVE, FINAL_STATUS, TRANSITIONS, IllegalTransitionError, check_transition
from trainyard.contract.wire.jobs import TERMINAL, JobStatus, StatusReason

STATUSES = get_args(JobStatus)
REASON_FOR: dict[JobStatus, StatusReason] = {"succeeded": "completed", "failed": "error", "cancelled": "user_cancelled"}

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


def refusal(source: JobStatus, target: JobStatus, reason: StatusReason | None) -> str | None:
    """Return the error of a transition; None if it is legal."""
    try:
        check_transition(source, target, reason)
    except IllegalTransitionError as error:
        return str(error)
    return None


def test_transition_is_legal_exactly_where_the_design_table_has_it() -> None:
    for source, target in product(STATUSES, STATUSES):
        error = refusal(source, target, REASON_FOR.get(target))
        assert (error is None) == (target in LEGAL[source].split()), (source, target)
        assert error is None or f"a job that is {source} cannot become {target}" in error


def test_every_status_has_a_row() -> None:
    assert set(TRANSITIONS) == set(STATUSES)


def test_every_reason_has_a_final_status() -> None:
    assert set(FINAL_STATUS) == set(get_args(StatusReason))
    assert set(FINAL_STATUS.values()) == TERMINAL


def test_final_status_requires_one_of_its_reasons() -> None:
    for reason, target in product(get_args(StatusReason), TERMINAL):
        error = refusal("running", target, reason)
        assert (error is None) == (FINAL_STATUS[reason] == target), (reason, target)


@pytest.mark.parametrize("target", sorted(TERMINAL))
def test_final_status_requires_a_reason(target: JobStatus) -> None:
    with pytest.raises(IllegalTransitionError):
        check_transition("running", target, None)


def test_active_statuses_are_those_the_scheduler_may_know() -> None:
    assert set(STATUSES) - TERMINAL - {"queued", "paused"} == ACTIVE
