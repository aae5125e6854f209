"""Jobs as columns. Pure functions."""

import math
from collections.abc import Sequence
from typing import Any

from trainyard.contract.wire.jobs import JobResource

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def job_table(jobs: Sequence[JobResource], columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the jobs as columns of equal length: the id, name and status, and the given columns.

    Without given columns, the submitter and the time of submission are included.
    """
    table: dict[str, list[Any]] = {
        "id": [job.id for job in jobs],
        "name": [job.name for job in jobs],
        "status": [job.status for job in jobs],
    }
    if not columns:
        table |= {"created_by": [job.created_by for job in jobs], "created_at": [job.created_at for job in jobs]}
    for column in columns:
        table[column] = [_number((job.values or {}).get(column)) for job in jobs]
    return table


def _number(value: Any) -> Any:
    """Return a value with NaN and infinities, which JSON lacks, as numbers."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
