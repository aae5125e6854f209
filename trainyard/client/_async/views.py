"""Calls about the runs table: names and tags of jobs, keys of queries, and saved views."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.errors import NotFoundError
from trainyard.client.request import JSON, Request, job_path, model, no_result, paged, segment, unpaged, without_none
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.views import JobChanges, JobKeyResource, ViewRequest, ViewResource


class AsyncViewCalls(AsyncTransport):
    """Calls about the runs table."""

    async def edit(
        self,
        job_id: str,
        *,
        name: str | None = None,
        project: str | None = None,
        tags: Mapping[str, str | None] | Sequence[str] | None = None,
        notes: str | None = None,
        archived: bool | None = None,
    ) -> JobResource:
        """Rename, tag or archive a job, or write its notes. Arguments that are None change nothing.

        Args:
            project: the project to which it belongs from now on; an empty text: none.
            tags: tags to add, each with a text, or with None to remove; or a list of tags to add.
            notes: Markdown; an empty text removes the notes.
        """
        if tags is not None and not isinstance(tags, Mapping):
            tags = dict.fromkeys(tags, "")
        fields: dict[str, Any] = without_none(name=name, project=project, tags=tags, notes=notes, archived=archived)
        content = JobChanges(**fields).model_dump_json(exclude_unset=True).encode()
        request = Request("PATCH", job_path(job_id), model(JobResource), headers=JSON, content=content)
        return await self._send(request)

    async def job_keys(self) -> list[JobKeyResource]:
        """Return the keys that `where`, `sort` and `columns` of `jobs` can name."""
        return (await self._send(unpaged("/v1/job-keys", JobKeyResource))).data

    def views(self) -> AsyncIterator[ViewResource]:
        """Iterate over your saved views and shared views, newest first."""
        return self._pages(paged("/v1/views", ViewResource))

    async def view(self, name: str) -> ViewResource:
        """Return a saved view by its id or name. Raises NotFoundError."""
        async for view in self.views():
            if name in (view.id, view.name):
                return view
        raise NotFoundError(f"there is no view {name!r}", code="view_not_found")

    async def save_view(
        self,
        name: str,
        *,
        where: str = "",
        sort: str = "",
        columns: Sequence[str] = (),
        group: str = "",
        shared: bool = False,
    ) -> ViewResource:
        """Save a view of the runs table under a name of yours that is not in use."""
        view = ViewRequest(name=name, where=where, sort=sort, columns=tuple(columns), group=group, shared=shared)
        return await self._send_view("POST", "/v1/views", view)

    async def replace_view(
        self,
        view_id: str,
        name: str,
        *,
        where: str = "",
        sort: str = "",
        columns: Sequence[str] = (),
        group: str = "",
        shared: bool = False,
    ) -> ViewResource:
        """Replace a saved view, name included."""
        view = ViewRequest(name=name, where=where, sort=sort, columns=tuple(columns), group=group, shared=shared)
        return await self._send_view("PUT", f"/v1/views/{segment(view_id, 'view')}", view)

    async def _send_view(self, method: str, path: str, view: ViewRequest) -> ViewResource:
        content = view.model_dump_json().encode()
        return await self._send(Request(method, path, model(ViewResource), headers=JSON, content=content))

    async def delete_view(self, view_id: str) -> None:
        """Delete a saved view."""
        await self._send(Request("DELETE", f"/v1/views/{segment(view_id, 'view')}", no_result))
