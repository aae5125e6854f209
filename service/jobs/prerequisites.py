"""Which queued jobs wait for others, and the condition of each. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from service.jobs.conditions import Condition
from service.jobs.dependencies import Dependency
from trainyard.contract.wire.jobs import TERMINAL

_NAMED = 3
"""Prerequisites that a message names."""


def waiting_jobs(dependencies: Iterable[Dependency]) -> Mapping[int, Condition]:
    """Return the condition of every job that waits for another job.

    Args:
        dependencies: Ordered by the job that waits.
    """
    by_job = groupby(dependencies, lambda one: one.job_pk)
    unmet = {job_pk: [one for one in group if not one.is_met] for job_pk, group in by_job}
    return {job_pk: _condition(waits) for job_pk, waits in unmet.items() if waits}


def _condition(unmet: Sequence[Dependency]) -> Condition:
    """Return the condition of a job with these prerequisites. None of them has succeeded."""
    ended = [one for one in unmet if one.status in TERMINAL]
    if not ended:
        texts = [f"{_name(one)} to {'end' if one.prerequisite.any_end else 'succeed'}" for one in unmet]
        return Condition("after", {"jobs": _listed(texts)})
    data = {"jobs": _listed([f"{_name(one)} {_END[str(one.status), one.is_deleted]}" for one in ended])}
    if any(one.is_deleted for one in ended):
        return Condition("after_deleted", data)
    return Condition("after_failed", {**data, "retry": " ".join(one.prerequisite.job_id for one in ended[:_NAMED])})


def _name(one: Dependency) -> str:
    job_id = one.prerequisite.job_id
    return job_id if one.owner is None else f"{job_id} of {one.owner}"


_END = {
    ("failed", False): "failed",
    ("failed", True): "was deleted after it had failed",
    ("cancelled", False): "was cancelled",
    ("cancelled", True): "was deleted after it had been cancelled",
}


def _listed(texts: Sequence[str]) -> str:
    rest = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
