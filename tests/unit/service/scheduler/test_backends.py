"""Facts about the schedulers."""

from datetime import timedelta

from service.core.settings import Settings
from service.scheduler.backends import BACKENDS
from service.scheduler.base import SUBMITTER_MARGIN_SECONDS


def test_call_timeout_covers_the_lifetime_of_the_submitter_process() -> None:
    policy = BACKENDS["slurm"].absence_policy(Settings(slurm_submit_timeout_seconds=20))
    assert policy.call_timeout >= timedelta(seconds=20 + SUBMITTER_MARGIN_SECONDS)


def test_slurm_takes_three_lookups_over_the_confirmation_time() -> None:
    policy = BACKENDS["slurm"].absence_policy(Settings())
    assert (policy.min_lookups, policy.min_wait, policy.interval) == (3, timedelta(seconds=180), timedelta(seconds=60))


def test_local_queue_takes_one_lookup() -> None:
    policy = BACKENDS["local"].absence_policy(Settings())
    assert (policy.min_lookups, policy.min_wait, policy.call_timeout) == (1, timedelta(0), timedelta(0))
