"""Calls about jobs: submit, list, control, history and logs."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Never, Self
from urllib.parse import quote

from trainyard.client._async.handle import AsyncJobHandle
from trainyard.client._async.transport import AsyncTransport
from trainyard.client.code_archive import CodeArchive, pack
from trainyard.client.errors import ConflictError, NotFoundError
from trainyard.client.references import LAST, MIN_ABBREVIATION, SEARCH_LIMIT, id_part, is_abbreviation, is_whole_id
from trainyard.client.request import (
    JSON,
    LogChunk,
    Request,
    force_param,
    format_time,
    job_path,
    model,
    no_result,
    paged,
    without_none,
)
from trainyard.client.request import idempotency_key as new_key
from trainyard.client.spec_body import Spec, is_preset_name, json_body, plain_spec, read_spec_file, spec_body
from trainyard.contract.spec.templates import Template
from trainyard.contract.spec.training_spec import fields_reset_by
from trainyard.contract.wire.data_accounts import DataAccounts
from trainyard.contract.wire.job_access import AccessResource
from trainyard.contract.wire.jobs import (
    AttemptResource,
    EventResource,
    JobResource,
    ProfileRequest,
    ResolutionResource,
    ScriptResource,
    SpecChange,
)
from trainyard.contract.wire.lineage import JobLineage
from trainyard.contract.wire.logs import LogLevel, LogLine, LogLines, LogPosition
from trainyard.contract.wire.pages import Page

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


_OF_CHANGE = {"field", "before", "after"}


class AsyncJobCalls(AsyncTransport):
    """Calls about jobs."""

    async def submit(
        self,
        spec: Spec | Path,
        *,
        code: str | Path | None = None,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> AsyncJobHandle:
        """Submit a spec: a TrainingSpec, plain data, YAML text, a preset's name, or the Path of a YAML or JSON file.

        The same key and spec return the same job.

        Args:
            code: the folder with your code, for tasks `custom` and `script`; uploaded unless the service has it.
            idempotency_key: your name for this submission; default: a new key.
            force: submit even if the plan exceeds the GPUs' memory.
        """
        if isinstance(spec, Path):
            spec = await asyncio.to_thread(read_spec_file, spec)
        elif isinstance(spec, str) and is_preset_name(spec):
            spec = (await self._send(Request("GET", f"/v1/templates/{spec}", model(Template)))).spec
        if code is not None:
            spec = {**plain_spec(spec), "code": await self.upload(code)}
        content, media_type = spec_body(spec)
        headers = {"Idempotency-Key": new_key(idempotency_key), "Content-Type": media_type}
        request = Request("POST", "/v1/jobs", model(JobResource), force_param(force), headers, content)
        return AsyncJobHandle(self, await self._send(request))

    async def upload(self, folder: str | Path | CodeArchive, *, without: Path | None = None) -> str:
        """Upload a folder with your code, or an archive of it, unless the service has it; return the spec's `code`.

        Args:
            without: a file to leave out, such as the spec.

        Raises:
            SpecError: the folder cannot be packed.
        """
        if not isinstance(folder, CodeArchive):
            folder = await asyncio.to_thread(pack, Path(folder), without=without)
        path = f"/v1/code/{folder.digest}"
        try:
            await self._send(Request("HEAD", path, no_result))
        except NotFoundError:
            headers = {"Content-Type": "application/x-tar"}
            await self._send(Request("PUT", path, no_result, headers=headers, content=folder.data))
        return folder.digest

    async def fork(
        self, job_id: str, *, step: int | None = None, changes: Mapping[str, Any] | None = None, force: bool = False
    ) -> AsyncJobHandle:
        """Submit the job's spec again as a new job that starts from a checkpoint of this job.

        Args:
            step: the checkpoint's step; default: the newest checkpoint.
            changes: top-level fields of the spec to replace; `steps` alone also removes `epochs`.
            force: submit even if the plan exceeds the GPUs' memory.
        """
        source = (await self.job(job_id)).resource
        origin = source.id if step is None else f"{source.id}:{step}"
        changes = changes or {}
        defaults = {"resume_from": origin, "resume": "state", "after": (), **fields_reset_by(changes)}
        return await self.submit({**source.spec, **defaults, **changes}, force=force)

    async def submit_changes(
        self,
        job_id: str,
        changes: Sequence[SpecChange | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> AsyncJobHandle:
        """Submit the job's spec with exactly these changes as a new job, such as the `changes` of a fix.

        Args:
            changes: the differences; each has the value that the job's spec must still have.
            idempotency_key: your name for this submission; default: a new key.
            force: submit even if the plan exceeds the GPUs' memory.

        Raises:
            ConflictError: a field has another value by now; nothing was submitted.
        """
        plain = [
            one if isinstance(one, Mapping) else one.model_dump(include=_OF_CHANGE, mode="json") for one in changes
        ]
        content = json_body({"changes": plain})
        headers = {"Idempotency-Key": new_key(idempotency_key), **JSON}
        path = f"{job_path(job_id)}/changes"
        request = Request("POST", path, model(JobResource), force_param(force), headers, content)
        return AsyncJobHandle(self, await self._send(request))

    async def job(self, job_id: str) -> AsyncJobHandle:
        """Return a handle of the job: its current state, and the calls about it.

        Args:
            job_id: its id, a unique prefix or suffix of the id (at least 4 characters), a name (the newest job of this
                name), or `last`.

        Raises:
            NotFoundError: no such job exists.
            ConflictError: the part belongs to several ids.
        """
        job_id = id_part(job_id)
        if job_id == LAST:
            newest = await self._list(paged("/v1/jobs", JobResource, 1, order="desc"))
            if not newest:
                raise NotFoundError("there is no job yet; try: trainyard submit digits_ddp --watch")
            return await self._whole(newest[0])
        try:
            return AsyncJobHandle(self, await self._send(Request("GET", job_path(job_id), model(JobResource))))
        except NotFoundError:
            if not job_id or is_whole_id(job_id):
                raise
            matches = await self._referenced(job_id)
            if not matches:
                raise
        if len(matches) > 1:
            raise ConflictError(f"{len(matches)} jobs have ids like {job_id!r}; use a longer part")
        return await self._whole(matches[0])

    def job_url(self, job_id: str) -> str:
        """Return the address of the job's page on the dashboard."""
        return f"{self.address}/jobs/{quote(job_id)}"

    async def _whole(self, listed: JobResource) -> AsyncJobHandle:
        """Return a job of a list with all reported values, of which a list has only a part."""
        return AsyncJobHandle(self, await self._send(Request("GET", job_path(listed.id), model(JobResource))))

    async def _referenced(self, reference: str) -> list[JobResource]:
        """Return the newest jobs whose ids have this part, or else the newest job of this name, if any."""
        matches: list[JobResource] = []
        if len(reference) >= MIN_ABBREVIATION:
            newest = self._pages(paged("/v1/jobs", JobResource, SEARCH_LIMIT, order="desc"))
            matches = [job async for job in newest if is_abbreviation(reference, job.id)]
        return matches or await self._list(paged("/v1/jobs", JobResource, 1, order="desc", name=reference))

    def jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        parameters: Mapping[str, bool | float | str] | None = None,
        created_by: str | None = None,
        project: str | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        sweep: str | None = None,
        search: str | None = None,
        order: str = "desc",
        limit: int | None = None,
        where: str | None = None,
        sort: str | None = None,
        columns: Sequence[str] = (),
        archived: str | None = None,
    ) -> AsyncJobList:
        """Iterate over jobs, newest first; pages are fetched on demand. `table()` returns the jobs as columns.

        Args:
            status: a status or several; matches jobs with any of them.
            parameters: values that the jobs' programs reported; numbers compare by value.
            created_after: a time, or its text with a time zone, such as 2026-01-01T00:00:00Z.
            limit: the number of jobs over all pages; default: all.
            where: a query such as `optimizer.lr < 1e-3 and eval/loss < 2`; see docs/runs-table.md.
            sort: a key of queries such as `eval/loss`; with `-` before it, descending. It replaces `order`.
            columns: keys of queries whose values each job has in `values`.
            archived: `no` (default), `only` or `all`.
        """
        filters = {f"metadata[{key}]": value for key, value in (metadata or {}).items()}
        filters |= {f"parameters[{key}]": str(value) for key, value in (parameters or {}).items()}
        times = {"created_after": created_after, "created_before": created_before}
        filters |= {key: format_time(time) for key, time in times.items() if time is not None}
        params = {
            "status": status,
            "name": name,
            "created_by": created_by,
            "project": project,
            "order": order,
            "sweep": sweep,
            "search": search,
            "where": where,
            "sort": sort,
            "columns": list(columns),
            "archived": archived,
        }
        return AsyncJobList(self._handles(paged("/v1/jobs", JobResource, limit, **params, **filters)), columns)

    async def _handles(self, request: Request[Page[JobResource]]) -> AsyncIterator[AsyncJobHandle]:
        async for resource in self._pages(request):
            yield AsyncJobHandle(self, resource)

    async def _post_action(self, job_id: str, action: str, body: bytes | None = None) -> JobResource:
        headers = JSON if body else {}
        path = job_path(job_id, action)
        return await self._send(Request("POST", path, model(JobResource), headers=headers, content=body))

    async def cancel(self, job_id: str) -> JobResource:
        """Request cancellation; `wait` returns when the job has ended."""
        return await self._post_action(job_id, "cancel")

    async def pause(self, job_id: str) -> JobResource:
        """Pause the job: it writes a checkpoint and releases its allocation. `resume` continues it."""
        return await self._post_action(job_id, "pause")

    async def resume(self, job_id: str, *, resources: Mapping[str, Any] | None = None) -> JobResource:
        """Continue a paused job from its last checkpoint.

        Args:
            resources: fields of the spec's `resources` to change, such as `{"partition": "long"}`; None: the default.
        """
        return await self._post_action(job_id, "resume", _changes(resources))

    async def retry(
        self, job_id: str, *, start: str = "checkpoint", resources: Mapping[str, Any] | None = None
    ) -> JobResource:
        """Run a failed or cancelled job again; with other resources, also submit a waiting job anew.

        Args:
            start: `checkpoint` for its last checkpoint, or `scratch`.
            resources: as for `resume`.
        """
        return await self._post_action(job_id, "retry", _changes(resources, {"from": start}))

    async def profile(self, job_id: str, *, steps: int = 3, ranks: Sequence[int] = (0,)) -> JobResource:
        """Request a profiler trace of the next steps of a running job; the event `profile_written` has its path."""
        body = ProfileRequest(steps=steps, ranks=tuple(ranks)).model_dump_json().encode()
        return await self._post_action(job_id, "profile", body)

    async def access(self, job_id: str, program: str | None = None, *, rank: int | None = None) -> AccessResource:
        """Return the data to start a program beside the ranks of a running job. Requires the code role; the call is
        audited.

        Args:
            program: name of a command for each node, or for the node of `rank`; default: a shell beside `rank`.
        """
        kind = "shell" if program is None else "exec"
        body = json.dumps(without_none(kind=kind, program=program, rank=rank)).encode()
        path = job_path(job_id, "access")
        return await self._send(Request("POST", path, model(AccessResource), headers=JSON, content=body))

    async def resolve(self, job_id: str, action: str, scheduler_id: str | None = None) -> JobResource:
        """Settle a job that is lost or whose submission is unconfirmed. Administrators only.

        Args:
            action: `adopt` with the scheduler's id of the job, `resubmit` or `give_up`.
        """
        body = json.dumps(without_none(action=action, scheduler_id=scheduler_id)).encode()
        return await self._post_action(job_id, "resolve", body)

    async def resolve_lost(self, action: str) -> Page[ResolutionResource]:
        """Settle all lost jobs in the same way, the oldest 500 at once. Administrators only.

        Args:
            action: `resubmit` or `give_up`.
        """
        body = json.dumps({"action": action}).encode()
        return await self._send(
            Request("POST", "/v1/lost-jobs/resolve", model(Page[ResolutionResource]), headers=JSON, content=body)
        )

    async def delete(self, job_id: str, *, only_checkpoints: bool = False) -> None:
        """Delete a job that has ended, with its run directory; or only its checkpoints."""
        params = {"only": "checkpoints"} if only_checkpoints else {}
        await self._send(Request("DELETE", job_path(job_id), no_result, params))

    def events(self, job_id: str, *, after: str | None = None) -> AsyncIterator[EventResource]:
        """Iterate over the job's events, oldest first; `after` is the id of the last event that you have."""
        return self._pages(paged(job_path(job_id, "events"), EventResource, after=after, order="asc"))

    async def lineage(self, job_id: str) -> JobLineage:
        """Return the origin of a job, and the jobs and versions made from it."""
        return await self._send(Request("GET", job_path(job_id, "lineage"), model(JobLineage)))

    async def data_accounts(self, job_id: str) -> DataAccounts:
        """Return the account of each source of the job's data: records, examples, and which tokens are learned."""
        return await self._send(Request("GET", job_path(job_id, "data"), model(DataAccounts)))

    async def attempts(self, job_id: str) -> list[AttemptResource]:
        """Return the job's attempts, oldest first."""
        return await self._list(paged(job_path(job_id, "attempts"), AttemptResource))

    async def logs(
        self,
        job_id: str,
        *,
        rank: int | str = 0,
        attempt: int | None = None,
        tail: int | None = None,
        offset: int | None = None,
        before: int | None = None,
    ) -> LogChunk:
        """Return a chunk of the log of a rank, or of the launcher (`rank="launch"`).

        Args:
            attempt: number of the attempt; default: the newest.
            tail: only that many lines from the end.
            offset: only the bytes from this offset on.
            before: with `tail`, the lines before this offset.
        """
        params = without_none(rank=rank, attempt=attempt, tail=tail, offset=offset, before=before)
        return await self._send(Request("GET", job_path(job_id, "logs"), LogChunk.from_response, params))

    async def search_logs(
        self,
        job_id: str,
        text: str | None = None,
        *,
        regex: bool = False,
        case_sensitive: bool = False,
        level: LogLevel | None = None,
        rank: int | str = 0,
        attempt: int | None = None,
        offset: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Iterate over the matching lines of a whole log, whatever its size.

        Args:
            text: a part of the lines, or with `regex` a regular expression in the syntax of RE2.
            level: only errors, or warnings and errors.
            attempt: number of the attempt; default: the newest.
            offset: begin at this byte; with `newest_first`, end before it.
        """
        given = {"regex": regex or None, "case_sensitive": case_sensitive or None, "text": text, "level": level}
        order = "desc" if newest_first else None
        params = without_none(**given, rank=rank, attempt=attempt, order=order, offset=offset, limit=1000)
        while True:
            page = await self._send(Request("GET", job_path(job_id, "logs", "search"), model(LogLines), params))
            for line in page.data:
                yield line
            if not page.has_more:
                return
            params = {**params, "offset": page.next_offset, **without_none(attempt=page.attempt)}

    async def log_position(
        self,
        job_id: str,
        *,
        time: datetime | None = None,
        step: int | None = None,
        rank: int | str = 0,
        attempt: int | None = None,
    ) -> LogPosition:
        """Return the position in a log at a time, or at the end of a step; for a step, in the newest attempt that did
        it."""
        at = None if time is None else format_time(time)
        params = without_none(time=at, step=step, rank=rank, attempt=attempt)
        return await self._send(Request("GET", job_path(job_id, "logs", "position"), model(LogPosition), params))

    async def script(self, job_id: str, *, attempt: int | None = None) -> ScriptResource:
        """Return the batch script that was submitted for an attempt; default: the newest."""
        params = without_none(attempt=attempt)
        return await self._send(Request("GET", job_path(job_id, "script"), model(ScriptResource), params))


def _changes(resources: Mapping[str, Any] | None, body: Mapping[str, Any] | None = None) -> bytes | None:
    """Return the body of a request that may change resources; None if it is empty."""
    document = {**(body or {}), **({"resources": dict(resources)} if resources else {})}
    return json.dumps(document).encode() if document else None
