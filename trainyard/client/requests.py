"""Every request of the API as a value: what is sent, and how its answer is read. Both clients use the same ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from trainyard.client.bodies import Spec, json_body, plain_spec, spec_body
from trainyard.client.errors import InvalidRequestError
from trainyard.client.ids import segment
from trainyard.client.packing import CodeArchive
from trainyard.client.wire import JSON, Request, given, job_path, model, page, time_text, whole
from trainyard.contract.spec.templates import Template
from trainyard.contract.spec.training_spec import excluded_by
from trainyard.contract.wire.cluster import ClusterResource
from trainyard.contract.wire.diagnostics import DiagnosticsReport
from trainyard.contract.wire.files import ArtifactResource, CheckpointResource, FileResource, UsageResource
from trainyard.contract.wire.jobs import AttemptResource, EventResource, JobResource, ProfileRequest, ScriptResource
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.plans import AskResource, PlanResource
from trainyard.contract.wire.sweeps import SweepDetail, SweepResource


@dataclass(frozen=True)
class LogChunk:
    """A piece of one log. The next piece starts at `next_offset`."""

    data: bytes
    offset: int
    next_offset: int

    @property
    def text(self) -> str:
        """For one piece alone; a character can lie across two."""
        return self.data.decode(errors="replace")


def submit(spec: Spec, idempotency_key: str | None, *, force: bool = False) -> Request[JobResource]:
    content, media_type = spec_body(spec)
    headers = {"Idempotency-Key": _key(idempotency_key), "Content-Type": media_type}
    return Request("POST", "/v1/jobs", model(JobResource), _forced(force), headers, content)


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _key(given_key: str | None) -> str:
    key = str(uuid4()) if given_key is None else given_key
    if not (key and key.isascii() and key.isprintable()):
        raise InvalidRequestError("must be printable ASCII, and not empty", param="Idempotency-Key")
    return key


def plan(spec: Spec, *, ask_scheduler: bool = False) -> Request[PlanResource]:
    """What a spec will need: memory by strategy, disk, the batch script. Nothing is submitted.

    Args:
        ask_scheduler: have the scheduler asked too; where `ask` in the answer still waits, `ask` reads it later.
    """
    content, media_type = spec_body(spec)
    params = {"ask_scheduler": "true"} if ask_scheduler else {}
    return Request("POST", "/v1/plans", model(PlanResource), params, {"Content-Type": media_type}, content)


def ask(ask_id: str) -> Request[AskResource]:
    """What the scheduler says of a plan, once it has answered."""
    return Request("GET", f"/v1/asks/{segment(ask_id, 'ask')}", model(AskResource))


def with_code(spec: Spec, digest: str) -> dict[str, Any]:
    """The spec with its code named. Raises SpecError: the text is not YAML."""
    return {**plain_spec(spec), "code": digest}


def submit_sweep(
    spec: Spec,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    members: Sequence[Mapping[str, Any]] | None = None,
    max_parallel: int | None = None,
    name: str | None = None,
    idempotency_key: str | None = None,
    force: bool = False,
) -> Request[SweepDetail]:
    """Submit a spec in several variants: all of them, or none.

    Args:
        grid: fields and the values that each takes; every combination is a job.
        members: instead, for each job the fields that it changes.
        max_parallel: how many of them may run at once.
        force: submit them even where they cannot fit the GPUs' memory.
    """
    document = plain_spec(spec)
    body = given(spec=document, grid=grid, members=members, max_parallel=max_parallel, name=name)
    headers = {"Idempotency-Key": _key(idempotency_key), "Content-Type": "application/json"}
    return Request("POST", "/v1/sweeps", model(SweepDetail), _forced(force), headers, json_body(body))


def sweep(sweep_id: str) -> Request[SweepDetail]:
    """One sweep with its members and how each does."""
    return Request("GET", f"/v1/sweeps/{segment(sweep_id, 'sweep')}", model(SweepDetail))


def sweeps() -> Request[Page[SweepResource]]:
    """All sweeps, newest first."""
    return page("/v1/sweeps", SweepResource)


def cancel_sweep(sweep_id: str) -> Request[SweepDetail]:
    """Ask for the end of every member that is not over."""
    return Request("POST", f"/v1/sweeps/{segment(sweep_id, 'sweep')}/cancel", model(SweepDetail))


def has_code(digest: str) -> Request[bool]:
    return Request("HEAD", f"/v1/code/{digest}", lambda _: True)


def put_code(archive: CodeArchive) -> Request[None]:
    headers = {"Content-Type": "application/x-tar"}
    return Request("PUT", f"/v1/code/{archive.digest}", lambda _: None, headers=headers, content=archive.data)


def job(job_id: str) -> Request[JobResource]:
    """What was asked, what is so, and how far it is."""
    return Request("GET", job_path(job_id), model(JobResource))


def jobs(
    *,
    status: str | Sequence[str] | None = None,
    name: str | None = None,
    metadata: Mapping[str, str] | None = None,
    created_by: str | None = None,
    created_after: datetime | str | None = None,
    created_before: datetime | str | None = None,
    sweep: str | None = None,
    search: str | None = None,
    order: str = "desc",
    limit: int | None = None,
) -> Request[Page[JobResource]]:
    """Jobs, newest first; pages are fetched as they are needed. `limit` bounds how many there are in all.

    Args:
        status: one, or several of which a job has any.
        created_after: a moment, or its text with a zone, such as 2026-01-01T00:00:00Z.
    """
    filters = {f"metadata[{key}]": value for key, value in (metadata or {}).items()}
    times = {"created_after": created_after, "created_before": created_before}
    filters |= {key: time_text(moment) for key, moment in times.items() if moment is not None}
    params = {
        "status": status,
        "name": name,
        "created_by": created_by,
        "order": order,
        "sweep": sweep,
        "search": search,
    }
    return page("/v1/jobs", JobResource, limit, **params, **filters)


def cancel(job_id: str) -> Request[JobResource]:
    """Ask for the job's end; `wait` tells when it is over."""
    return Request("POST", job_path(job_id, "cancel"), model(JobResource))


def pause(job_id: str) -> Request[JobResource]:
    """Have the job save a checkpoint and give its place back, for `resume` to go on from."""
    return Request("POST", job_path(job_id, "pause"), model(JobResource))


def resume(job_id: str) -> Request[JobResource]:
    """Go on with a paused job."""
    return Request("POST", job_path(job_id, "resume"), model(JobResource))


def retry(job_id: str, *, start: str = "checkpoint") -> Request[JobResource]:
    """Run a failed or cancelled job again.

    Args:
        start: `checkpoint`, its last one, or `scratch`.
    """
    body = json.dumps({"from": start}).encode()
    headers = JSON
    return Request("POST", job_path(job_id, "retry"), model(JobResource), headers=headers, content=body)


def profile(job_id: str, *, steps: int = 3, ranks: Sequence[int] = (0,)) -> Request[JobResource]:
    """Ask a running job for a trace of its next steps; the event `profile_written` tells where it is."""
    body = ProfileRequest(steps=steps, ranks=tuple(ranks)).model_dump_json().encode()
    headers = JSON
    return Request("POST", job_path(job_id, "profile"), model(JobResource), headers=headers, content=body)


def resolve(job_id: str, action: str, scheduler_id: str | None = None) -> Request[JobResource]:
    """As an administrator, say what became of a job that is lost or whose submission had no clear answer.

    Args:
        action: `adopt` with the scheduler's id of it, `resubmit` or `give_up`.
    """
    body = json.dumps(given(action=action, scheduler_id=scheduler_id)).encode()
    headers = JSON
    return Request("POST", job_path(job_id, "resolve"), model(JobResource), headers=headers, content=body)


def events(job_id: str, *, after: str | None = None) -> Request[Page[EventResource]]:
    """The job's history, oldest first; an event's id is the cursor to go on from."""
    return page(job_path(job_id, "events"), EventResource, after=after, order="asc")


def attempts(job_id: str) -> Request[Page[AttemptResource]]:
    """Each entry that the job had in the scheduler's queue, oldest first."""
    return whole(job_path(job_id, "attempts"), AttemptResource)


def delete(job_id: str, *, only_checkpoints: bool = False) -> Request[None]:
    """Delete a job that is over, with its run directory; or only its checkpoints."""
    params = {"only": "checkpoints"} if only_checkpoints else {}
    return Request("DELETE", job_path(job_id), lambda _: None, params)


def checkpoint(job_id: str, checkpoint_id: str) -> Request[CheckpointResource]:
    """One checkpoint; its digest is that of its `manifest.json`."""
    path = job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
    return Request("GET", path, model(CheckpointResource))


def delete_checkpoint(job_id: str, checkpoint_id: str) -> Request[None]:
    """Delete one checkpoint; the newest of a job that is not over is refused."""
    path = job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
    return Request("DELETE", path, lambda _: None)


def files(job_id: str, folder: str = "export") -> Request[Page[FileResource]]:
    """The files of the `export`, or of `checkpoints/<id>`."""
    return whole(job_path(job_id, *folder.split("/"), "files"), FileResource)


def file_path(job_id: str, folder: str, path: str) -> str:
    """Of one file of a checkpoint (`checkpoints/<id>`) or of the `export`."""
    return job_path(job_id, *folder.split("/"), "files", *map(quote, path.split("/")))


def file_content(job_id: str, folder: str, path: str) -> Request[bytes]:
    return Request("GET", file_path(job_id, folder, path), lambda response: response.content)


def usage() -> Request[UsageResource]:
    """Disk use by person and in all, as it was last measured."""
    return Request("GET", "/v1/usage", model(UsageResource))


def fork_spec(source: JobResource, step: int | None) -> dict[str, Any]:
    """The job's spec as one that starts from its checkpoint, to be changed and submitted."""
    return {**source.spec, "resume_from": source.id if step is None else f"{source.id}:{step}"}


def changed(spec: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with these fields replaced."""
    return {**spec, **excluded_by(changes), **changes}


def checkpoints(job_id: str) -> Request[Page[CheckpointResource]]:
    """The complete checkpoints that are kept, oldest first."""
    return whole(job_path(job_id, "checkpoints"), CheckpointResource)


def logs(
    job_id: str,
    *,
    rank: int | str = 0,
    attempt: int | None = None,
    tail: int | None = None,
    offset: int | None = None,
) -> Request[LogChunk]:
    """A piece of the log of one rank, or of the launcher (`rank="launch"`)."""
    params = given(rank=rank, attempt=attempt, tail=tail, offset=offset)
    return Request("GET", job_path(job_id, "logs"), _log_chunk, params)


def artifacts(job_id: str) -> Request[Page[ArtifactResource]]:
    """Files that the job left beside its weights."""
    return whole(job_path(job_id, "artifacts"), ArtifactResource)


def artifact(job_id: str, path: str) -> Request[None]:
    return Request("GET", job_path(job_id, "artifacts", *map(quote, path.split("/"))), lambda _: None)


def script(job_id: str, *, attempt: int | None = None) -> Request[ScriptResource]:
    """What was handed to the scheduler, for the newest attempt or this one."""
    return Request("GET", job_path(job_id, "script"), model(ScriptResource), given(attempt=attempt))


def templates() -> Request[Page[Template]]:
    """The presets, ready to be submitted."""
    return whole("/v1/templates", Template)


def template(name: str) -> Request[Template]:
    """One preset, ready to be submitted."""
    return Request("GET", f"/v1/templates/{segment(name, 'template')}", model(Template))


def doctor() -> Request[DiagnosticsReport]:
    """What the service sees of its own installation."""
    return Request("GET", "/v1/doctor", model(DiagnosticsReport))


def cluster() -> Request[ClusterResource]:
    """What there is to run on, from the service's snapshot."""
    return Request("GET", "/v1/cluster", model(ClusterResource))


def ready() -> Request[bool]:
    return Request("GET", "/readyz", lambda response: response.is_success)


def stream(job_id: str, *, logs: bool) -> Request[None]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    params = {} if logs else {"logs": "false"}
    return Request("GET", job_path(job_id, "stream"), lambda _: None, params, headers)


def stream_all() -> Request[None]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return Request("GET", "/v1/stream", lambda _: None, headers=headers)


def _log_chunk(response: httpx.Response) -> LogChunk:
    offset = int(response.headers["x-trainyard-offset"])
    next_offset = int(response.headers["x-trainyard-next-offset"])
    return LogChunk(response.content, offset, next_offset)
