"""Which members of a sweep wait for others of it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from service.reconciler.quota import Share


def beyond_sweep(jobs: Iterable[Share]) -> Mapping[int, str]:
    """The waiting members that are not submitted yet, each with why in plain words; the oldest go first.

    Args:
        jobs: every unfinished one, oldest first.
    """
    shares = [share for share in jobs if share.sweep is not None and share.sweep_parallel is not None]
    used = Counter(share.sweep for share in shares if not share.waiting and share.gpus)
    found: dict[int, str] = {}
    for share in shares:
        limit = share.sweep_parallel
        if not share.waiting or limit is None:
            continue
        if used[share.sweep] >= limit:
            jobs_said = "1 job" if limit == 1 else f"{limit} jobs"
            found[share.job_pk] = f"waits for its turn: sweep {share.sweep} runs {jobs_said} at once"
        else:
            used[share.sweep] += 1
    return found
