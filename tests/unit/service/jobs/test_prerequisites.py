"""The condition of jobs that wait for others."""

import pytest

from service.jobs.dependencies import Dependency, is_met
from service.jobs.prerequisites import waiting_jobs
from trainyard.contract.spec.prerequisites import Prerequisite


def one(job: str, status: str | None, *, pk: int = 1, any_end: bool = False, deleted: bool = False) -> Dependency:
    return Dependency(pk, Prerequisite(job, any_end), status, deleted)


@pytest.mark.parametrize(
    ("status", "success", "any_end"),
    [
        ("succeeded", True, True),
        ("failed", False, True),
        ("cancelled", False, True),
        *((status, False, False) for status in ("queued", "submitting", "pending", "running", "paused", "lost")),
    ],
)
def test_a_prerequisite_is_met_by_success_or_by_any_end(status: str, success: bool, any_end: bool) -> None:
    assert is_met(Prerequisite("a", any_end=False), status) == success
    assert is_met(Prerequisite("a", any_end=True), status) == any_end


def test_jobs_whose_prerequisites_are_met_do_not_wait() -> None:
    met = [one("a", "succeeded"), one("b", "failed", any_end=True), one("c", None)]
    waiting = waiting_jobs([*met, one("d", "running", pk=2), *(one("a", "succeeded", pk=3),)])
    assert list(waiting) == [2]


@pytest.mark.parametrize(
    ("unmet", "code", "message"),
    [
        (
            [one("a", "running"), one("b", "queued", any_end=True), one("c", "succeeded")],
            "after",
            "Waiting for a to succeed, b to end, as `after` of the spec requests.",
        ),
        (
            [one(name, "paused") for name in "abcde"],
            "after",
            "Waiting for a to succeed, b to succeed, c to succeed and 2 more, as `after` of the spec requests.",
        ),
        (
            [one("a", "running"), one("b", "failed"), one("c", "cancelled")],
            "after_failed",
            "Not submitted, because `after` requires jobs to succeed: b failed, c was cancelled. `trainyard retry b c` "
            "runs them again, and `trainyard cancel` ends this job.",
        ),
        (
            [one("a", "failed"), one("b", "cancelled", deleted=True)],
            "after_deleted",
            "Not submitted, because `after` requires jobs to succeed: a failed, b was deleted after it had been "
            "cancelled. It cannot start; `trainyard cancel` ends it.",
        ),
    ],
)
def test_the_condition_names_what_a_job_waits_for(unmet: list[Dependency], code: str, message: str) -> None:
    condition = waiting_jobs(unmet)[1]
    assert (condition.code, condition.message) == (code, message)
