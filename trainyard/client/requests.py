"""Every request of the API as a value: what is sent, and how its answer is read. Both clients use the same ones."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import BaseModel, ValidationError

from trainyard.client.errors import InvalidRequestError, not_trainyard
from trainyard.client.ids import segment
from trainyard.client.packing import CodeArchive, pack
from trainyard.contract.base import wire_time
from trainyard.contract.cluster import ClusterResource
from trainyard.contract.plans import PlanResource
from trainyard.contract.resources import (
    ArtifactResource,
    AttemptResource,
    CheckpointResource,
    ComparisonResource,
    EventResource,
    FileResource,
    JobResource,
    MetricsResource,
    Page,
    PointResource,
    ProfileRequest,
    ScriptResource,
    UsageResource,
)
from trainyard.contract.spec import TrainingSpec, dump_spec
from trainyard.contract.sweeps import SweepDetail, SweepResource
from trainyard.contract.templates import Template
from trainyard.contract.yaml_text import load_yaml

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Spec = TrainingSpec | Mapping[str, Any] | str
"""What `submit` takes: a spec, plain data, or YAML text."""

PAGE_SIZE = 100

POINTS_PAGE = 10_000

ALL_POINTS = 1_000_000
"""Of a series; the service thins what is longer than it is asked for, and by default to far less."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """Harmless to repeat, but for few: reads, wishes about a job, and submissions, which carry a key."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    repeatable: bool = True
    """Else it is sent again only where the service says that it did nothing."""

    def read(self, response: httpx.Response) -> T:
        """The answer's value.

        Raises:
            ServerError: what answered is not a Trainyard service.
        """
        try:
            return self.parse(response)
        except (ValidationError, ValueError, KeyError):
            raise not_trainyard(response) from None


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
    key = idempotency_key or str(uuid4())
    if not (key.isascii() and key.isprintable()):
        raise InvalidRequestError("must be printable ASCII", param="Idempotency-Key")
    content, media_type = _body(spec)
    headers = {"Idempotency-Key": key, "Content-Type": media_type}
    params = {"force": "true"} if force else {}
    return Request("POST", "/v1/jobs", _model(JobResource), params, headers, content)


def plan(spec: Spec) -> Request[PlanResource]:
    """What a spec will need: memory by strategy, disk, the batch script. Nothing is submitted."""
    content, media_type = _body(spec)
    headers = {"Content-Type": media_type}
    return Request("POST", "/v1/plans", _model(PlanResource), headers=headers, content=content)


def packed(spec: Spec, folder: str | Path) -> tuple[dict[str, Any], CodeArchive]:
    """The spec with its code named, and the code.

    Raises:
        SpecError: the folder cannot be packed, or the text is not YAML.
    """
    archive = pack(Path(folder))
    return {**_plain(spec), "code": archive.digest}, archive


def submit_sweep(
    spec: Spec,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    members: Sequence[Mapping[str, Any]] | None = None,
    max_parallel: int | None = None,
    name: str | None = None,
    idempotency_key: str | None = None,
) -> Request[SweepDetail]:
    """Submit a spec in several variants: all of them, or none.

    Args:
        grid: fields and the values that each takes; every combination is a job.
        members: instead, for each job the fields that it changes.
        max_parallel: how many of them may run at once.
    """
    document = _plain(spec)
    body = _given(spec=document, grid=grid, members=members, max_parallel=max_parallel, name=name)
    headers = {"Idempotency-Key": idempotency_key or str(uuid4()), "Content-Type": "application/json"}
    return Request("POST", "/v1/sweeps", _model(SweepDetail), headers=headers, content=_json(body))


def sweep(sweep_id: str) -> Request[SweepDetail]:
    """One sweep with its members and how each does."""
    return Request("GET", f"/v1/sweeps/{segment(sweep_id, 'sweep')}", _model(SweepDetail))


def sweeps() -> Request[Page[SweepResource]]:
    """All sweeps, newest first."""
    return _page("/v1/sweeps", SweepResource)


def cancel_sweep(sweep_id: str) -> Request[SweepDetail]:
    """Ask for the end of every member that is not over."""
    return Request("POST", f"/v1/sweeps/{segment(sweep_id, 'sweep')}/cancel", _model(SweepDetail))


def has_code(digest: str) -> Request[bool]:
    return Request("HEAD", f"/v1/code/{digest}", lambda _: True)


def put_code(archive: CodeArchive) -> Request[None]:
    headers = {"Content-Type": "application/x-tar"}
    return Request("PUT", f"/v1/code/{archive.digest}", lambda _: None, headers=headers, content=archive.data)


def job(job_id: str) -> Request[JobResource]:
    return Request("GET", _job_path(job_id), _model(JobResource))


def jobs(
    *,
    status: str | Sequence[str] | None,
    name: str | None,
    metadata: Mapping[str, str] | None,
    created_by: str | None,
    created_after: datetime | None,
    created_before: datetime | None,
    order: str,
    limit: int | None,
    sweep: str | None = None,
    search: str | None = None,
) -> Request[Page[JobResource]]:
    filters = {f"metadata[{key}]": value for key, value in (metadata or {}).items()}
    times = {"created_after": created_after, "created_before": created_before}
    filters |= {key: wire_time(moment) for key, moment in times.items() if moment is not None}
    params = {
        "status": status,
        "name": name,
        "created_by": created_by,
        "order": order,
        "sweep": sweep,
        "search": search,
        **filters,
    }
    return _page("/v1/jobs", JobResource, min(limit or PAGE_SIZE, PAGE_SIZE), **params)


def cancel(job_id: str) -> Request[JobResource]:
    """Ask for the job's end; `wait` tells when it is over."""
    return Request("POST", _job_path(job_id, "cancel"), _model(JobResource))


def pause(job_id: str) -> Request[JobResource]:
    """Have the job save a checkpoint and give its place back, for `resume` to go on from."""
    return Request("POST", _job_path(job_id, "pause"), _model(JobResource))


def resume(job_id: str) -> Request[JobResource]:
    """Go on with a paused job."""
    return Request("POST", _job_path(job_id, "resume"), _model(JobResource))


def retry(job_id: str, start: str) -> Request[JobResource]:
    body = json.dumps({"from": start}).encode()
    headers = {"Content-Type": "application/json"}
    return Request("POST", _job_path(job_id, "retry"), _model(JobResource), headers=headers, content=body)


def profile(job_id: str, steps: int, ranks: Sequence[int]) -> Request[JobResource]:
    body = ProfileRequest(steps=steps, ranks=tuple(ranks)).model_dump_json().encode()
    headers = {"Content-Type": "application/json"}
    return Request("POST", _job_path(job_id, "profile"), _model(JobResource), headers=headers, content=body)


def resolve(job_id: str, action: str, scheduler_id: str | None = None) -> Request[JobResource]:
    """As an administrator, say what became of a job that is lost or whose submission had no clear answer.

    Args:
        action: `adopt` with the scheduler's id of it, `resubmit` or `give_up`.
    """
    body = json.dumps(_given(action=action, scheduler_id=scheduler_id)).encode()
    headers = {"Content-Type": "application/json"}
    return Request("POST", _job_path(job_id, "resolve"), _model(JobResource), headers=headers, content=body)


def events(job_id: str, after: str | None) -> Request[Page[EventResource]]:
    return _page(_job_path(job_id, "events"), EventResource, after=after, order="asc")


def attempts(job_id: str) -> Request[Page[AttemptResource]]:
    return _page(_job_path(job_id, "attempts"), AttemptResource)


def delete(job_id: str, *, only_checkpoints: bool = False) -> Request[None]:
    """Delete a job that is over, with its run directory; or only its checkpoints."""
    params = {"only": "checkpoints"} if only_checkpoints else {}
    return Request("DELETE", _job_path(job_id), lambda _: None, params)


def checkpoint(job_id: str, checkpoint_id: str) -> Request[CheckpointResource]:
    path = _job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
    return Request("GET", path, _model(CheckpointResource))


def delete_checkpoint(job_id: str, checkpoint_id: str) -> Request[None]:
    path = _job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
    return Request("DELETE", path, lambda _: None)


def files(job_id: str, folder: str) -> Request[Page[FileResource]]:
    return _page(_job_path(job_id, *folder.split("/"), "files"), FileResource)


def file_path(job_id: str, folder: str, path: str) -> str:
    """Of one file of a checkpoint (`checkpoints/<id>`) or of the `export`."""
    return _job_path(job_id, *folder.split("/"), "files", *map(quote, path.split("/")))


def file_content(job_id: str, folder: str, path: str) -> Request[bytes]:
    return Request("GET", file_path(job_id, folder, path), lambda response: response.content)


def usage() -> Request[UsageResource]:
    """Disk use by person and in all, as it was last measured."""
    return Request("GET", "/v1/usage", _model(UsageResource))


def fork_spec(source: JobResource, step: int | None) -> dict[str, Any]:
    """The job's spec as one that starts from its checkpoint, to be changed and submitted."""
    return {**source.spec, "resume_from": source.id if step is None else f"{source.id}:{step}"}


def checkpoints(job_id: str) -> Request[Page[CheckpointResource]]:
    return _page(_job_path(job_id, "checkpoints"), CheckpointResource)


def metrics(
    job_id: str, keys: Sequence[str], from_step: int | None, max_points: int | None
) -> Request[MetricsResource]:
    params = _given(keys=list(keys), from_step=from_step, max_points=max_points or ALL_POINTS, format="json")
    return Request("GET", _job_path(job_id, "metrics"), _model(MetricsResource), params)


def compare(
    job_ids: Sequence[str], keys: Sequence[str], from_step: int | None, max_points: int | None
) -> Request[list[MetricsResource]]:
    params = _given(job=list(job_ids), keys=list(keys), from_step=from_step, max_points=max_points)
    return Request("GET", "/v1/metrics", lambda answer: _model(ComparisonResource)(answer).data, params)


def points(job_id: str, keys: Sequence[str]) -> Request[Page[PointResource]]:
    return _page(_job_path(job_id, "points"), PointResource, POINTS_PAGE, keys=list(keys))


def metrics_csv(job_id: str, keys: Sequence[str], from_step: int | None, max_points: int | None) -> Request[str]:
    params = _given(keys=list(keys), from_step=from_step, max_points=max_points or ALL_POINTS, format="csv")
    return Request("GET", _job_path(job_id, "metrics"), lambda response: response.text, params)


def logs(job_id: str, rank: int | str, attempt: int | None, tail: int | None, offset: int | None) -> Request[LogChunk]:
    params = _given(rank=rank, attempt=attempt, tail=tail, offset=offset)
    return Request("GET", _job_path(job_id, "logs"), _log_chunk, params)


def artifacts(job_id: str) -> Request[Page[ArtifactResource]]:
    return _page(_job_path(job_id, "artifacts"), ArtifactResource)


def artifact(job_id: str, path: str) -> Request[None]:
    return Request("GET", _job_path(job_id, "artifacts", *map(quote, path.split("/"))), lambda _: None)


def script(job_id: str) -> Request[ScriptResource]:
    return Request("GET", _job_path(job_id, "script"), _model(ScriptResource))


def templates() -> Request[Page[Template]]:
    return _page("/v1/templates", Template)


def template(name: str) -> Request[Template]:
    return Request("GET", f"/v1/templates/{segment(name, 'template')}", _model(Template))


def cluster() -> Request[ClusterResource]:
    """What there is to run on, from the service's snapshot."""
    return Request("GET", "/v1/cluster", _model(ClusterResource))


def ready() -> Request[bool]:
    return Request("GET", "/readyz", lambda response: response.is_success)


def stream(job_id: str, *, logs: bool) -> Request[None]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    params = {} if logs else {"logs": "false"}
    return Request("GET", _job_path(job_id, "stream"), lambda _: None, params, headers)


def stream_all() -> Request[None]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return Request("GET", "/v1/stream", lambda _: None, headers=headers)


def following(request: Request[Page[T]], page: Page[T]) -> Request[Page[T]] | None:
    """The request of the next page, if there is one."""
    if not page.has_more or page.last_id is None or not page.data:
        return None
    return replace(request, params={**request.params, "after": page.last_id})


def _page(path: str, model: type[M], limit: int = PAGE_SIZE, **params: Any) -> Request[Page[M]]:
    return Request("GET", path, _model(Page[model]), _given(limit=limit, **params))  # type: ignore[valid-type]


def _given(**params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None and value != []}


def _model(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _job_path(job_id: str, *rest: str) -> str:
    return "/".join(("/v1/jobs", segment(job_id, "job"), *rest))


def _log_chunk(response: httpx.Response) -> LogChunk:
    offset = int(response.headers["x-trainyard-offset"])
    next_offset = int(response.headers["x-trainyard-next-offset"])
    return LogChunk(response.content, offset, next_offset)


def _body(spec: Spec) -> tuple[bytes, str]:
    if isinstance(spec, str):
        return spec.encode(), "application/yaml"
    return _json(_plain(spec)), "application/json"


def _plain(spec: Spec) -> Mapping[str, Any]:
    if isinstance(spec, TrainingSpec):
        return dump_spec(spec)
    document = load_yaml(spec) if isinstance(spec, str) else spec
    if not isinstance(document, Mapping):
        raise InvalidRequestError("a spec is a mapping of fields")
    return document


def _json(document: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the spec is not plain JSON data: {error}") from None
