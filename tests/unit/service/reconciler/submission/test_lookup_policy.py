"""How much looking makes sure that the scheduler does not have an attempt."""

from datetime import timedelta

from service.core.settings import Settings
from service.reconciler.submission.submitter import lookup_policy
from service.scheduler.base import SUBMITTER_MARGIN_SECONDS


def test_a_question_is_under_way_for_as_long_as_its_submitter_may_live() -> None:
    policy = lookup_policy("slurm", Settings(slurm_submit_timeout_seconds=20))
    assert policy.asking >= timedelta(seconds=20 + SUBMITTER_MARGIN_SECONDS)


def test_slurm_is_asked_three_times_over_the_time_of_doubt() -> None:
    policy = lookup_policy("slurm", Settings())
    assert (policy.times, policy.after, policy.apart) == (3, timedelta(seconds=180), timedelta(seconds=60))


def test_the_local_queue_is_asked_once() -> None:
    policy = lookup_policy("local", Settings())
    assert (policy.times, policy.after, policy.asking) == (1, timedelta(0), timedelta(0))
