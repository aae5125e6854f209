"""A list of jobs, as an iterator of handles or as a table."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Never, Self

from trainyard.client._async.handle import AsyncJobHandle
from trainyard.contract.wire.jobs import JobResource

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class AsyncJobList:
    """The result of `AsyncClient.jobs`: iterate over it once, or call `table` for a DataFrame."""

    def __init__(self, handles: AsyncIterator[AsyncJobHandle], columns: Sequence[str] = ()) -> None:
        self._handles = handles
        self._columns = columns

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncJobHandle:
        return await self._handles.__anext__()

    def __getitem__(self, index: object) -> Never:
        """Refuse an index: how many jobs there are is known at the end alone.

        Raises:
            TypeError: always, with what to write instead.
        """
        raise TypeError("the list is fetched page by page and has no index; iterate over `jobs(limit=...)`")

    async def table(self) -> dict[str, list[Any]]:
        """Return the jobs as columns, as `pandas.DataFrame` takes them: id, name, status, and `columns` if given."""
        return _job_table([job.resource async for job in self], self._columns)


def _job_table(jobs: Sequence[JobResource], columns: Sequence[str]) -> dict[str, list[Any]]:
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
