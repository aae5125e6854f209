"""Routes of jobs: each parses the request, makes one call and returns a resource."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from service.api.dependencies import (
    AdminDep,
    AppState,
    AppStateDep,
    AttemptNumberQuery,
    AttemptWindowDep,
    CreatedByQuery,
    EditorDep,
    EventWindowDep,
    JobId,
    JobWindowDep,
    NowDep,
    QueryTimestamp,
    UserDep,
    code_role,
)
from service.api.idempotency import REPLAYED, IdempotencyKey
from service.api.json_body import JsonRoute
from service.api.query_params import metadata_filter, parameters_filter
from service.api.spec_body import SPEC_BODY, read_document
from service.audit.log import add_audit_detail
from service.auth.principals import Principal
from service.code.service import check_code, check_code_permission
from service.core.errors import InvalidSpecError, NotFoundError
from service.core.thread_slots import run_in_thread_slot
from service.db.paging import PageRequest
from service.jobs import operator_resolution
from service.jobs import service as job_service
from service.jobs.access import read_access
from service.jobs.changed_copy import changed_copy
from service.jobs.editing import edit
from service.jobs.lineage import read_lineage
from service.jobs.listing import JobFilter, read_job
from service.jobs.repository import JobRepository
from service.jobs.resource_changes import ResourceChange, merge, with_resources
from service.jobs.schemas import attempt_resource, data_accounts, event_resource, page_of
from service.jobs.submission import SubmissionRequest, SubmissionResult, submit
from service.jobs.table.listing import MAX_COLUMNS, TableRequest, list_table
from service.specs.data_files import pin_files
from service.specs.preflight import unavailable_resources
from trainyard.contract.job_query import MAX_KEY, MAX_QUERY
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.data_accounts import DATA_ACCOUNT, MAX_SOURCES_OF_JOB, DataAccounts
from trainyard.contract.wire.job_access import AccessRequest, AccessResource
from trainyard.contract.wire.jobs import (
    AttemptResource,
    ChangesRequest,
    EventResource,
    JobResource,
    JobStatus,
    ProfileRequest,
    ResolutionResource,
    ResolveLostRequest,
    ResolveRequest,
    ResumeRequest,
    RetryRequest,
    ScriptResource,
)
from trainyard.contract.wire.lineage import JobLineage
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.views import JobChanges
from trainyard.contract.wire.worker_events import WORKER_PREFIX

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=JsonRoute)
lost_router = APIRouter(prefix="/v1/lost-jobs", tags=["jobs"], route_class=JsonRoute)

EnteringUserDep = Annotated[Principal, Depends(code_role("a shell or a command in a job"))]

_MAX_RESOLVED = 500
"""Maximum number of lost jobs that a request resolves."""
_MAX_AUDITED = 100
"""Maximum number of job ids in an audit entry; each job has an event of its own."""


@router.post(
    "",
    status_code=201,
    response_model=JobResource,
    operation_id="submit_job",
    openapi_extra=SPEC_BODY,
    responses=REPLAYED,
)
async def submit_job(
    request: Request,
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    idempotency_key: IdempotencyKey = None,
    force: Annotated[bool, Query(description="Submit the job even if it cannot fit the GPUs' memory.")] = False,
) -> Any:
    """Accept a training spec. The job is durable when the response arrives, and it runs once."""
    body = await request.body()

    def accept() -> SubmissionResult:
        document = read_document(body, request.headers)
        return _accept(app_state, user, document, now, idempotency_key, force=force)

    return _submitted(app_state, await run_in_thread_slot(accept))


@router.post(
    "/{job_id}/changes", status_code=201, response_model=JobResource, operation_id="submit_changes", responses=REPLAYED
)
def submit_changes(
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    job_id: JobId,
    body: ChangesRequest,
    idempotency_key: IdempotencyKey = None,
    force: Annotated[bool, Query(description="Submit the job even if it cannot fit the GPUs' memory.")] = False,
) -> Any:
    """Submit the spec of a job with exactly these changes as a new job, such as the changes of a fix.

    If a field has another value by now, nothing is submitted and the answer is 409 `job_changed`.
    """
    copy = changed_copy(app_state.database, job_id, body.changes, now)
    result = _accept(app_state, user, copy.document, now, idempotency_key, force=force, key_name=copy.source_name)
    return _submitted(app_state, result)


def _accept(
    app_state: AppState,
    user: Principal,
    document: Any,
    now: datetime,
    idempotency_key: str | None,
    *,
    force: bool,
    key_name: str | None = None,
) -> SubmissionResult:
    """Accept a spec and make the job durable.

    Args:
        key_name: The name of the job for which the key stands, where the service chose the name in the spec.
    """
    settings = app_state.settings
    accepted = app_state.acceptance.accept(document, now, user.name)
    accepted = pin_files(app_state.files, accepted)
    app_state.secrets.require(user, accepted.spec)
    check_code(user, accepted.spec, settings)
    unresolved = accepted.unresolved
    if key_name is not None:
        unresolved = unresolved.model_copy(update={"name": key_name})
    request = SubmissionRequest(accepted.spec, idempotency_key, unresolved, force, warnings=accepted.warnings)
    return submit(
        app_state.database,
        user,
        request,
        run_files=app_state.run_files,
        now=now,
        quotas=app_state.quotas,
        run_as=settings.run_as,
    )


def _submitted(app_state: AppState, result: SubmissionResult) -> JSONResponse:
    app_state.failpoint("accept.after-commit")
    if not result.replayed:
        app_state.notify_reconciler()
    headers = {"Idempotent-Replayed": "true"} if result.replayed else None
    # Returned as stored: FastAPI would validate and serialize the resource a second time.
    return JSONResponse(result.response, status_code=201, headers=headers)


_METADATA = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "`metadata[team]=nlp` selects jobs with this label; if repeated, jobs with all of the labels.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}

_PARAMETERS = {
    **_METADATA,
    "name": "parameters",
    "description": "`parameters[lr]=0.0003` selects jobs whose program reported this; numbers compare by value.",
}


_WHERE = (
    'A query such as `optimizer.lr < 1e-3 and eval/loss < 2 and tag = "baseline"`: fields of the spec, parameters, '
    "tags, metrics and columns of jobs, compared by = != < <= > >= ~ (contains), in (...) and exists, joined by "
    "and, or and not."
)
_SORT = (
    "A key of `where`, such as `eval/loss` or `min(eval/loss)`; with `-` before it, descending. It replaces `order`."
)
_STATUS = "Jobs in this status, or in any of several statuses."
_COLUMNS = "A key of `where` whose value each job has in `values`; repeated for several: `columns=a&columns=b`."


@router.get("", operation_id="list_jobs", openapi_extra={"parameters": [_METADATA, _PARAMETERS]})
def list_jobs(
    request: Request,
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    window: JobWindowDep,
    status: Annotated[list[JobStatus] | None, Query(description=_STATUS, examples=[["running"]])] = None,
    name: Annotated[str | None, Query(max_length=120, description="Exact name.")] = None,
    search: Annotated[
        str | None, Query(max_length=120, description="A part of the name or of the owner, ignoring case, or the id.")
    ] = None,
    created_by: CreatedByQuery = None,
    project: Annotated[str | None, Query(max_length=120, description="Only jobs of this project.")] = None,
    created_after: Annotated[QueryTimestamp | None, Query(description="At this time or later, RFC 3339.")] = None,
    created_before: Annotated[QueryTimestamp | None, Query(description="Before this time.")] = None,
    sweep: Annotated[str | None, Query(max_length=40, description="Only members of this sweep.")] = None,
    where: Annotated[str, Query(max_length=MAX_QUERY, description=_WHERE)] = "",
    sort: Annotated[str, Query(max_length=MAX_KEY + 1, description=_SORT)] = "",
    columns: Annotated[list[str] | None, Query(max_length=MAX_COLUMNS, description=_COLUMNS)] = None,
    archived: Annotated[Literal["no", "only", "all"], Query(description="Whether archived jobs are listed.")] = "no",
    brief: Annotated[bool, Query(description="Leave out specs, metrics, parameters and notes.")] = False,
) -> Page[JobResource]:
    """List jobs, newest first or by `sort`, filtered by a query, status, name, project, creator, time, labels, ..."""
    job_filter = JobFilter(
        statuses=tuple(status or ()),
        name=name,
        search=search,
        created_by=created_by,
        project=project,
        metadata=metadata_filter(request),
        parameters=parameters_filter(request),
        created_after=created_after,
        created_before=created_before,
        sweep=sweep,
    )
    request_of_table = TableRequest(
        where=where,
        sort=sort,
        columns=tuple(columns or ()),
        archived={"no": False, "only": True, "all": None}[archived],
        brief=brief,
        job_filter=job_filter,
    )
    return list_table(app_state.database, window, request_of_table, app_state.settings.runs, now)


@lost_router.post("/resolve", status_code=202, operation_id="resolve_lost_jobs")
def resolve_lost(
    app_state: AppStateDep, admin: AdminDep, now: NowDep, body: ResolveLostRequest
) -> Page[ResolutionResource]:
    """Settle all lost jobs in the same way, the oldest 500 at once; `has_more` states whether to repeat the request."""
    with app_state.database.read() as session:
        job_ids = JobRepository(session, now).list_lost(_MAX_RESOLVED + 1)
    first, runs = job_ids[:_MAX_RESOLVED], app_state.settings.runs
    add_audit_detail(action=body.action, jobs=first[:_MAX_AUDITED], count=len(first))
    request = ResolveRequest(action=body.action)
    results = operator_resolution.resolve_each(app_state.database, admin, first, request, runs=runs, now=now)
    app_state.notify_reconciler()
    return page_of(results, len(job_ids) > len(first), lambda row: row, lambda result: result.job_id)


@router.get("/{job_id}", operation_id="get_job")
def get(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> JobResource:
    """Get a job: its spec, status, progress and current attempt."""
    return read_job(app_state.database, job_id, app_state.settings.runs, now)


@router.patch("/{job_id}", operation_id="edit_job")
def edit_job(app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId, body: JobChanges) -> JobResource:
    """Rename, tag or archive a job, or write its notes. Its run is not affected."""
    add_audit_detail(fields=sorted(body.model_fields_set))
    return job_service.apply_action(
        app_state.database, user, job_id, edit(body, user), runs=app_state.settings.runs, now=now
    )


@router.delete("/{job_id}", status_code=204, operation_id="delete_job")
def delete_job(
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    job_id: JobId,
    only: Annotated[Literal["checkpoints"] | None, Query(description="Keep the job and its reports.")] = None,
) -> None:
    """Delete a job that has ended, with its run directory, or only its checkpoints."""
    delete = job_service.delete_checkpoints if only else job_service.delete_job
    delete(app_state.database, user, job_id, now)
    app_state.failpoint("delete.after-commit")
    app_state.notify_cleanup()


@router.post("/{job_id}/cancel", status_code=202, operation_id="cancel_job")
def cancel(app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId) -> JobResource:
    """Request that a job ends; the status becomes `cancelled` once nothing of it is running."""
    return _apply(app_state, user, job_id, job_service.cancel, now)


@router.post("/{job_id}/pause", status_code=202, operation_id="pause_job")
def pause(app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId) -> JobResource:
    """Request that a job writes a checkpoint and releases its allocation; `resume` continues it from there."""
    return _apply(app_state, user, job_id, job_service.pause, now)


@router.post("/{job_id}/resume", status_code=202, operation_id="resume_job")
def resume(
    app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId, body: ResumeRequest | None = None
) -> JobResource:
    """Continue a paused job from its last checkpoint, maybe with other resources."""
    action = _with_resources(app_state, job_id, now, body, job_service.resume, resubmits=False)
    return _apply(app_state, user, job_id, action, now, runs_code=True)


@router.post("/{job_id}/retry", status_code=202, operation_id="retry_job")
def retry(
    app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId, body: RetryRequest | None = None
) -> JobResource:
    """Run a failed or cancelled job again with all its retries, from its last checkpoint or from scratch.

    With other resources, a job that waits to be submitted is submitted anew.
    """
    start = (body or RetryRequest()).start
    action = job_service.retry(start, app_state.quotas)
    action = _with_resources(app_state, job_id, now, body, action, resubmits=start == "checkpoint")
    return _apply(app_state, user, job_id, action, now, runs_code=True)


@router.post("/{job_id}/profile", status_code=202, operation_id="profile_job")
def profile(app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId, body: ProfileRequest) -> JobResource:
    """Request a trace of the next steps of a running job; an event reports the path when it is written."""
    return _apply(app_state, user, job_id, job_service.request_profile(body), now)


@router.post("/{job_id}/access", operation_id="enter_job")
def enter(
    app_state: AppStateDep, user: EnteringUserDep, now: NowDep, job_id: JobId, body: AccessRequest
) -> AccessResource:
    """Return the command to start a shell or program beside the ranks of a running job; the audit has an entry for
    each."""
    add_audit_detail(**body.model_dump(exclude_none=True))
    settings = app_state.settings
    return read_access(
        app_state.database,
        user,
        job_id,
        body,
        runs=settings.runs,
        python=settings.python,
        accounts=app_state.accounts,
        now=now,
    )


@router.post("/{job_id}/resolve", status_code=202, operation_id="resolve_job")
def resolve(app_state: AppStateDep, user: AdminDep, now: NowDep, job_id: JobId, body: ResolveRequest) -> JobResource:
    """Settle a job that is lost or whose submission is unconfirmed; for administrators."""
    job = _apply(app_state, user, job_id, operator_resolution.resolve(user, body), now)
    if body.action == "adopt":
        app_state.metrics.adoption("operator")
    return job


def _with_resources(
    app_state: AppState,
    job_id: JobId,
    now: datetime,
    body: ResumeRequest | None,
    action: job_service.JobAction,
    *,
    resubmits: bool,
) -> job_service.JobAction:
    """Return the action with the requested change of resources.

    Raises:
        InvalidSpecError: the cluster can never provide the resources.
    """
    if body is None or not body.resources:
        return action
    with app_state.database.read() as session:
        job = JobRepository(session, now).get(job_id)
    resources = merge(job.spec["resources"], body.resources)
    accepted = app_state.acceptance.accept({**job.spec, "resources": resources}, now, job.created_by)
    if problems := unavailable_resources(app_state.settings, accepted):
        raise InvalidSpecError(problems)
    change = ResourceChange(job.spec["resources"], dump_spec(accepted.spec)["resources"])
    return with_resources(action, change, resubmits=resubmits)


def _apply(
    app_state: AppState,
    user: Principal,
    job_id: JobId,
    action: job_service.JobAction,
    now: datetime,
    *,
    runs_code: bool = False,
) -> JobResource:
    settings = app_state.settings
    # The permission may have been withdrawn since the submission, and another token of the user may lack it.
    check = partial(check_code_permission, user, settings=settings) if runs_code else None
    job = job_service.apply_action(
        app_state.database, user, job_id, action, runs=settings.runs, now=now, check_spec=check
    )
    app_state.failpoint("steer.after-commit")
    app_state.notify_reconciler()
    return job


@router.get("/{job_id}/events", operation_id="list_events")
def events(
    app_state: AppStateDep, _user: UserDep, now: NowDep, window: EventWindowDep, job_id: JobId
) -> Page[EventResource]:
    """List the events of a job, newest first."""
    with app_state.database.read() as session:
        repository = JobRepository(session, now)
        job = repository.get(job_id)
        rows, has_more = repository.list_events(job, window)
    return page_of(rows, has_more, lambda row: event_resource(job.id, row), lambda event: f"evt_{event.sequence}")


@router.get("/{job_id}/attempts", operation_id="list_attempts")
def attempts(
    app_state: AppStateDep, _user: UserDep, now: NowDep, window: AttemptWindowDep, job_id: JobId
) -> Page[AttemptResource]:
    """List the attempts of a job, oldest first."""
    with app_state.database.read() as session:
        repository = JobRepository(session, now)
        rows, has_more = repository.attempts_page(repository.get(job_id), window)
    return page_of(rows, has_more, attempt_resource, lambda attempt: attempt.id)


@router.get("/{job_id}/script", operation_id="get_script")
def script(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, attempt: AttemptNumberQuery = None
) -> ScriptResource:
    """Get the submitted batch script of the newest or the given attempt."""
    with app_state.database.read() as session:
        repository = JobRepository(session, now)
        row = repository.find_attempt(repository.get(job_id), attempt)
    if row is None and attempt is not None:
        raise NotFoundError(f"the job has no attempt {attempt}", code="attempt_not_found", param="attempt")
    if row is None or not row.script:
        raise NotFoundError("the job has not been submitted yet", code="not_submitted", param="attempt")
    return ScriptResource(job_id=job_id, attempt=row.number, script=row.script)


@router.get("/{job_id}/data", operation_id="get_data_accounts")
def get_data(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> DataAccounts:
    """Get the account of each source of a job's data: records, examples, and which tokens are learned. It is empty
    until the data was read, and for data without accounts, such as images."""
    newest = PageRequest(limit=MAX_SOURCES_OF_JOB)
    with app_state.database.read() as session:
        repository = JobRepository(session, now)
        rows, _ = repository.list_events(repository.get(job_id), newest, WORKER_PREFIX + DATA_ACCOUNT)
    return data_accounts(rows[::-1])


@router.get("/{job_id}/lineage", operation_id="get_lineage")
def get_lineage(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> JobLineage:
    """Get the lineage of a job: origin, forks, data, base model and registered models."""
    return read_lineage(app_state.database, job_id, now)
