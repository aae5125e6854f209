"""A list of jobs, as an iterator of handles or as a table."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Never, Self

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

    def __getitem__(self, index: object) -> Never:
        """Refuse an index: how many jobs there are is known at the end alone.

        Raises:
            TypeError: always, with what to write instead.
        """
        raise TypeError("the list is fetched page by page and has no index; iterate over `jobs(limit=...)`")

    async def table(self) -> dict[str, list[Any]]:
        """Return the jobs as columns, as `pandas.DataFrame` takes them: id, name, status, and `columns` if given."""
        return job_table([job.resource async for job in self], self._columns)
