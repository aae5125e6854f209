# Generated from _async/job_list.py by installation/sync_client.py; do not edit.
"""The jobs of one list, as an iterator of handles or as a table."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from trainyard.client._sync.handle import JobHandle
from trainyard.client.job_table import job_table


class JobList:
    """What `Client.jobs` returns: iterate over it once, or call `table` for a DataFrame."""

    def __init__(self, handles: Iterator[JobHandle], columns: Sequence[str] = ()) -> None:
        self._handles = handles
        self._columns = columns

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> JobHandle:
        return self._handles.__next__()

    def table(self) -> dict[str, list[Any]]:
        """Return the jobs as columns, as `pandas.DataFrame` takes them: id, name, status, and `columns` if given."""
        return job_table([job.resource for job in self], self._columns)
