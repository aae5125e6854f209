"""Whose turn it is: what one person's jobs may have at the scheduler at once. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.jobs.quota import UserQuotas


@dataclass(frozen=True)
class Share:
    """An unfinished job, as far as limits go."""

    job_pk: int
    job_id: str
    user: str
    role: str
    gpus: int
    waiting: bool
    """To be submitted; else the scheduler has it, or may have."""
    sweep: str | None = None
    """Of which it is a member, and how many of that may be at the scheduler at once."""
    sweep_parallel: int | None = None


def held_back(jobs: Iterable[Share], limits: UserQuotas) -> Mapping[int, str]:
    """The waiting jobs that are not submitted yet, each with why in plain words.

    A person's jobs go in the order of their creation: a small one does not overtake a large one that waits for room.

    Args:
        jobs: every unfinished one, oldest first.
    """
    shares = list(jobs)
    used: dict[str, int] = defaultdict(int)
    for share in shares:
        used[share.user] += 0 if share.waiting else share.gpus
    found: dict[int, str] = {}
    first: dict[str, str] = {}
    second: set[str] = set()
    for share in shares:
        limit = limits.gpu_quota(share.role)
        if not share.waiting or limit is None:
            continue
        if share.user in second:
            # Words that stay as they are while the line moves: new ones are a transaction and an event for each job.
            found[share.job_pk] = f"waits behind older jobs of {share.user}, which wait for GPUs of their share"
        elif share.user in first:
            second.add(share.user)
            found[share.job_pk] = f"waits behind {first[share.user]}, which waits for GPUs of {share.user}'s share"
        elif used[share.user] + share.gpus > limit:
            found[share.job_pk] = _words(share, used[share.user], limit)
            first[share.user] = share.job_id
        else:
            used[share.user] += share.gpus
    return found


def _words(share: Share, used: int, limit: int) -> str:
    if share.gpus > limit:
        return f"needs {share.gpus} GPUs, and the jobs of one person may have {limit}; it cannot start under this limit"
    return f"waits: jobs of {share.user} have {used} of the {limit} GPUs that one person's may; it needs {share.gpus}"
