"""A handle of a job: its last known state, and calls that need no id."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from trainyard.client.notebook import job_html, read_curves
from trainyard.client.request import LogChunk, as_list
from trainyard.contract.wire.curves import CurveAxis
from trainyard.contract.wire.data_accounts import DataAccounts
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import EventResource, JobResource
from trainyard.contract.wire.logs import LogLevel, LogLine

if TYPE_CHECKING:
    from trainyard.client._async.client import AsyncClient


class AsyncJobHandle:
    """The result of `AsyncClient.job`, `jobs`, `submit` and `fork`. Every response that is the job updates
    `resource`."""

    resource: JobResource
    """The job as the service last returned it."""

    def __init__(self, client: Any, resource: JobResource) -> None:
        self._client: AsyncClient = client
        self.resource = resource
        self._curves: dict[str, list[Any]] = {}
        """The curves that `metrics` returned last, for notebooks."""

    def __getattr__(self, name: str) -> Any:
        """Return a field of the resource: `job.status`. A field named like a method is in `resource` only."""
        if name == "resource":
            raise AttributeError(name)
        return getattr(self.resource, name)

    def __repr__(self) -> str:
        return f"<job {self.id} {self.resource.name!r}, {self.resource.status}>"

    def _repr_html_(self) -> str:
        """Return the job as a table for notebooks, with sparklines.

        The sparklines show the metrics that `metrics` returned last; if it was not called, the synchronous client reads
        them.
        """
        return job_html(self.resource, self.url, self._curves or read_curves(self.resource, self._client.metrics))

    @property
    def id(self) -> str:
        """The job's id, as every command and route takes it."""
        return self.resource.id

    @property
    def url(self) -> str:
        """The address of the job's page on the dashboard."""
        return self._client.job_url(self.id)

    async def refresh(self) -> JobResource:
        """Read the job from the service."""
        return self._update((await self._client.job(self.id)).resource)

    async def wait(self, timeout: float | None = None) -> Self:
        """Return when the job has ended; see `AsyncClient.wait`."""
        self._update(await self._client.wait(self.id, timeout))
        return self

    async def cancel(self) -> JobResource:
        """Request cancellation; `wait` returns when the job has ended."""
        return self._update(await self._client.cancel(self.id))

    async def pause(self) -> JobResource:
        """Pause the job: it writes a checkpoint and releases its allocation."""
        return self._update(await self._client.pause(self.id))

    async def resume(self, *, resources: Mapping[str, Any] | None = None) -> JobResource:
        """Continue the paused job; see `AsyncClient.resume`."""
        return self._update(await self._client.resume(self.id, resources=resources))

    async def retry(self, *, start: str = "checkpoint", resources: Mapping[str, Any] | None = None) -> JobResource:
        """Run the failed or cancelled job again, from its last `checkpoint` or from `scratch`."""
        return self._update(await self._client.retry(self.id, start=start, resources=resources))

    async def edit(
        self,
        *,
        name: str | None = None,
        project: str | None = None,
        tags: Mapping[str, str | None] | Sequence[str] | None = None,
        notes: str | None = None,
        archived: bool | None = None,
    ) -> JobResource:
        """Rename, tag or archive the job, or write its notes; see `AsyncClient.edit`."""
        changed = await self._client.edit(
            self.id, name=name, project=project, tags=tags, notes=notes, archived=archived
        )
        return self._update(changed)

    async def metrics(
        self,
        keys: str | list[str] | tuple[str, ...] = (),
        *more_keys: str,
        from_step: int | None = None,
        max_points: int | None = None,
        x: CurveAxis = "step",
        system: bool = False,
    ) -> dict[str, list[Any]]:
        """Return curves as columns, with a row for each point, for `pandas.DataFrame`.

        `metrics("loss", "acc@1")` equals `metrics(["loss", "acc@1"])`; the program determines the names. Without names,
        `system` adds the launchers' metrics of nodes, ranks and GPUs.
        """
        requested = [*as_list(keys), *more_keys]
        curves = await self._client.metrics(
            self.id, requested, from_step=from_step, max_points=max_points, x=x, system=system
        )
        self._curves = curves.table()
        return self._curves

    async def logs(
        self,
        *,
        rank: int | str = 0,
        attempt: int | None = None,
        tail: int | None = None,
        offset: int | None = None,
        before: int | None = None,
    ) -> LogChunk:
        """Return a chunk of a log; see `AsyncClient.logs`."""
        return await self._client.logs(self.id, rank=rank, attempt=attempt, tail=tail, offset=offset, before=before)

    async def search_logs(
        self,
        text: str | None = None,
        *,
        regex: bool = False,
        level: LogLevel | None = None,
        rank: int | str = 0,
        attempt: int | None = None,
    ) -> list[LogLine]:
        """Return the matching lines of a whole log; see `AsyncClient.search_logs`."""
        lines = self._client.search_logs(self.id, text, regex=regex, level=level, rank=rank, attempt=attempt)
        return [line async for line in lines]

    async def events(self, *, after: str | None = None) -> list[EventResource]:
        """Return the job's events, oldest first."""
        return [event async for event in self._client.events(self.id, after=after)]

    async def data_accounts(self) -> DataAccounts:
        """Return the account of each source of the job's data; see `AsyncClient.data_accounts`."""
        return await self._client.data_accounts(self.id)

    async def checkpoints(self) -> list[CheckpointResource]:
        """Return the complete checkpoints, oldest first."""
        return await self._client.checkpoints(self.id)

    def _update(self, resource: JobResource) -> JobResource:
        self.resource = resource
        return resource
