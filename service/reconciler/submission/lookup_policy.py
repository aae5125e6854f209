"""How the absence of an attempt from the scheduler is confirmed. Pure functions."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from service.core.settings import Settings
from service.scheduler.base import SUBMITTER_MARGIN_SECONDS


@dataclass(frozen=True)
class LookupPolicy:
    """How many lookups prove that the scheduler does not have an attempt."""

    min_lookups: int
    min_wait: timedelta
    """The least time between the last call of the scheduler and the proof."""
    interval: timedelta = timedelta(0)
    """The time between two lookups; two at once would prove no more than one."""
    call_timeout: timedelta = timedelta(0)
    """The longest time that a call of the scheduler can take, in a child that outlives a killed service."""


def lookup_policy(scheduler: Literal["local", "slurm"], settings: Settings) -> LookupPolicy:
    """Return the policy for a scheduler."""
    if scheduler == "local":
        # The service reads its own queue under a lock, so one lookup is proof.
        return LookupPolicy(min_lookups=1, min_wait=timedelta(0))
    # sbatch may retry by itself for two minutes, and slurmctld may list a job late.
    confirm_absence = timedelta(seconds=settings.slurm_confirm_absence_seconds)
    call_timeout = timedelta(seconds=settings.slurm_submit_timeout_seconds + SUBMITTER_MARGIN_SECONDS)
    return LookupPolicy(
        min_lookups=3, min_wait=confirm_absence, interval=confirm_absence / 3, call_timeout=call_timeout
    )
