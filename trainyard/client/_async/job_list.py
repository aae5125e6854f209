"""A list of jobs, as an iterator of handles or as a table."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from trainyard.client._async.handle import AsyncJobHandle
from trainyard.client.job_table import job_table


class AsyncJobList:
    """The result of `AsyncClient.jobs`: iterate over it once, or call `table` for a DataFrame."""

    def __init__(self, handles: AsyncIterator[AsyncJobHandle], columns: Sequence[str] = ()) -> None:
        self._handles = handles
        self._columns = columns

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncJobHandle:
        return await self._handles.__anext__()

    async def table(self) -> dict[str, list[Any]]:
        """Return the jobs as columns, as `pandas.DataFrame` takes them: id, name, status, and `columns` if given."""
        return job_table([job.resource async for job in self], self._columns)
