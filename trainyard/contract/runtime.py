"""The runtime of a job. Pages compute it by the same rule while they are open: `runtimeOf` in job_rows.js."""

from datetime import datetime


def runtime_seconds(started_at: datetime | None, finished_at: datetime | None, now: datetime) -> float | None:
    """Return the seconds from a job's first start to its end, or until now; None if it has not started."""
    if started_at is None:
        return None
    # The clock of a client may be behind the service's clock.
    return max(0.0, ((finished_at or now) - started_at).total_seconds())
