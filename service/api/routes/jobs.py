"""The routes of jobs: parse, one call, answer."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api.dependencies import (
    AttemptNumber,
    EventWindowDep,
    JobWindowDep,
    NowDep,
    QueryTimestamp,
    Services,
    ServicesDep,
    UserDep,
)
from service.api.openapi import SPEC
from service.auth.principals import Principal
from service.code.service import admit
from service.core.errors import MalformedRequestError, NotFoundError
from service.db.paging import PageRequest
from service.jobs import (
    deletion as deleting,
)
from service.jobs import (
    lifecycle as steering,
)
from service.jobs import (
    operator_resolution as resolving,
)
from service.jobs import (
    profiles,
)
from service.jobs import (
    service as actions,
)
from service.jobs import (
    submission as submitting,
)
from service.jobs.listing import JobFilter, JobLists
from service.jobs.repository import JobRepository
from service.jobs.schemas import attempt_resource, event_resource, job_resource, page_of
from service.planner import service as planning
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.yaml_loader import load_yaml
from trainyard.contract.wire.jobs import (
    AttemptResource,
    EventResource,
    JobResource,
    JobStatus,
    ProfileRequest,
    ResolveRequest,
    RetryRequest,
    ScriptResource,
)
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
SPEC_BODY = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": SPEC} for kind in ("application/json", "application/yaml")},
    },
}


@router.post("", status_code=201, response_model=JobResource, operation_id="submit_job", openapi_extra=SPEC_BODY)
async def submit(
    request: Request,
    services: ServicesDep,
    user: UserDep,
    now: NowDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    force: Annotated[bool, Query(description="Submit it even where it cannot fit the GPUs' memory.")] = False,
) -> Any:
    """Accept a training spec. It is durable when this answers, and will be run once."""
    document = read_document(await request.body(), request.headers)

    def accept() -> submitting.Accepted:
        settings = services.settings
        found = planning.accept(services, document, now)
        admit(user, found.spec, roles=settings.code_roles, runs=settings.runs)
        asked = submitting.Asked(found.spec, idempotency_key, found.plain, force)
        house = submitting.House(services.run_root, settings.quota_bytes)
        return submitting.submit(services.database, user, asked, house, now, services.limits)

    accepted = await run_in_threadpool(accept)
    services.failpoint("accept.after-commit")
    if not accepted.replayed:
        services.notify_reconciler()
    headers = {"Idempotent-Replayed": "true"} if accepted.replayed else None
    # As it is: FastAPI would make the resource again to make the same answer of it.
    return JSONResponse(accepted.job, status_code=201, headers=headers)


def read_document(body: bytes, headers: Mapping[str, str]) -> Any:
    """JSON, or YAML by content type.

    Raises:
        MalformedRequestError: neither.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    try:
        text = body.decode()
        if kind in _YAML_TYPES:
            return load_yaml(text)
        return json.loads(text, object_pairs_hook=_no_twins)
    except SpecError as error:
        raise MalformedRequestError(str(error), code="invalid_yaml") from None
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


_METADATA = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "`metadata[team]=nlp`: jobs with this label; repeated, with all of them.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}


def get_metadata_filter(request: Request) -> dict[str, str]:
    """`metadata[team]=nlp` as {"team": "nlp"}."""
    items = request.query_params.items()
    return {name[len("metadata[") : -1]: value for name, value in items if is_metadata(name)}


def is_metadata(name: str) -> bool:
    """Whether a query parameter is of the form `metadata[key]`."""
    return name.startswith("metadata[") and name.endswith("]")


@router.get("", operation_id="list_jobs", openapi_extra={"parameters": [_METADATA]})
def list_jobs(
    request: Request,
    services: ServicesDep,
    _user: UserDep,
    now: NowDep,
    window: JobWindowDep,
    status: Annotated[list[JobStatus] | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=120)] = None,
    search: Annotated[
        str | None, Query(max_length=120, description="Part of the name, in any case; or the id.")
    ] = None,
    created_by: Annotated[str | None, Query(max_length=128)] = None,
    created_after: Annotated[QueryTimestamp | None, Query(description="At this moment or later, RFC 3339.")] = None,
    created_before: Annotated[QueryTimestamp | None, Query(description="Earlier than this moment.")] = None,
    sweep: Annotated[str | None, Query(max_length=40, description="Members of this sweep.")] = None,
) -> Page[JobResource]:
    """Jobs, newest first; filters by status, name or a part of it, creator, time of creation and `metadata[key]`."""
    wanted = JobFilter(
        statuses=tuple(status or ()),
        name=name,
        search=search,
        created_by=created_by,
        metadata=get_metadata_filter(request),
        created_after=created_after,
        created_before=created_before,
        sweep=sweep,
    )
    return jobs_page(services, window, wanted, now)


def jobs_page(services: Services, window: PageRequest, wanted: JobFilter, now: datetime) -> Page[JobResource]:
    """One page of the jobs that are wanted."""
    with services.database.read() as session:
        jobs, more = JobLists(session).page(window, wanted)
        attempts = JobRepository(session, now).current_attempts(jobs)
    return page_of(
        jobs,
        more,
        lambda job: job_resource(job, attempts.get(job.id), services.run(job.id), now),
        lambda job: job.id,
    )


@router.get("/{job_id}", operation_id="get_job")
def get(services: ServicesDep, _user: UserDep, now: NowDep, job_id: str) -> JobResource:
    """What was asked, what is so, and how far it is."""
    with services.database.read() as session:
        repository = JobRepository(session, now)
        job = repository.get(job_id)
        attempt = repository.current_attempts([job]).get(job.id)
    return job_resource(job, attempt, services.run(job.id), now)


@router.delete("/{job_id}", status_code=204, operation_id="delete_job")
def delete(
    services: ServicesDep,
    user: UserDep,
    now: NowDep,
    job_id: str,
    only: Annotated[Literal["checkpoints"] | None, Query(description="Keep the job, and what it reported.")] = None,
) -> None:
    """Delete a job that is over, with its run directory; or only its checkpoints."""
    remove = deleting.delete_checkpoints if only else deleting.delete_job
    remove(services.database, user, job_id, now)
    services.failpoint("delete.after-commit")
    services.notify_cleanup()


@router.post("/{job_id}/cancel", status_code=202, operation_id="cancel_job")
def cancel(services: ServicesDep, user: UserDep, now: NowDep, job_id: str) -> JobResource:
    """Ask for the job's end; its status says when nothing of it runs any more."""
    job = actions.cancel(services.database, user, job_id, run_root=services.run_root, now=now)
    services.notify_reconciler()
    return job


@router.post("/{job_id}/pause", status_code=202, operation_id="pause_job")
def pause(services: ServicesDep, user: UserDep, now: NowDep, job_id: str) -> JobResource:
    """Have the job save a checkpoint and give its place back; `resume` goes on from there."""
    return _steer(services, user, job_id, steering.pause, now)


@router.post("/{job_id}/resume", status_code=202, operation_id="resume_job")
def resume(services: ServicesDep, user: UserDep, now: NowDep, job_id: str) -> JobResource:
    """Go on with a paused job, from its last checkpoint."""
    return _steer(services, user, job_id, steering.resume, now)


@router.post("/{job_id}/retry", status_code=202, operation_id="retry_job")
def retry(
    services: ServicesDep, user: UserDep, now: NowDep, job_id: str, body: RetryRequest | None = None
) -> JobResource:
    """Run a failed or cancelled job again with all its retries, from its last checkpoint or from scratch."""
    return _steer(services, user, job_id, steering.retry((body or RetryRequest()).start, services.limits), now)


def _steer(services: Services, user: Principal, job_id: str, change: steering.Change, now: datetime) -> JobResource:
    job = steering.steer(services.database, user, job_id, change, run_root=services.run_root, now=now)
    services.failpoint("steer.after-commit")
    services.notify_reconciler()
    return job


@router.post("/{job_id}/profile", status_code=202, operation_id="profile_job")
def profile(services: ServicesDep, user: UserDep, now: NowDep, job_id: str, body: ProfileRequest) -> JobResource:
    """Ask a running job for a trace of its next steps; an event tells when it is written, and where."""
    return profiles.ask(services.database, user, job_id, body, run_root=services.run_root, now=now)


@router.post("/{job_id}/resolve", status_code=202, operation_id="resolve_job")
def resolve(services: ServicesDep, user: UserDep, now: NowDep, job_id: str, body: ResolveRequest) -> JobResource:
    """Say what became of a job that is lost or whose submission had no clear answer; for administrators."""
    job = resolving.resolve(services.database, user, job_id, body, run_root=services.run_root, now=now)
    if body.action == "adopt":
        services.metrics.adoption("operator")
    services.notify_reconciler()
    return job


@router.get("/{job_id}/events", operation_id="list_events")
def events(
    services: ServicesDep, _user: UserDep, now: NowDep, window: EventWindowDep, job_id: str
) -> Page[EventResource]:
    """What happened to the job."""
    with services.database.read() as session:
        repository = JobRepository(session, now)
        job = repository.get(job_id)
        rows, more = repository.list_events(job, window)
    return page_of(rows, more, lambda row: event_resource(job.id, row), lambda event: event.id)


@router.get("/{job_id}/attempts", operation_id="list_attempts")
def attempts(services: ServicesDep, _user: UserDep, now: NowDep, job_id: str) -> Page[AttemptResource]:
    """Each entry that the job had in the scheduler's queue, oldest first."""
    with services.database.read() as session:
        repository = JobRepository(session, now)
        rows = repository.list_attempts(repository.get(job_id))
    return page_of(rows, False, attempt_resource, lambda attempt: attempt.id)


@router.get("/{job_id}/script", operation_id="get_script")
def script(
    services: ServicesDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    attempt: AttemptNumber = None,
) -> ScriptResource:
    """What was handed to the scheduler, for the newest attempt or the one asked for."""
    with services.database.read() as session:
        repository = JobRepository(session, now)
        row = repository.find_attempt(repository.get(job_id), attempt)
    if row is None and attempt is not None:
        raise NotFoundError(f"the job has no attempt {attempt}", code="attempt_not_found", param="attempt")
    if row is None or not row.script:
        raise NotFoundError("nothing was handed to the scheduler yet", code="not_submitted", param="attempt")
    return ScriptResource(job_id=job_id, attempt=row.number, script=row.script)
