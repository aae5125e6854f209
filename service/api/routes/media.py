"""The routes of the media that a job's program logged."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from service.api.compared_jobs import ComparedJobs, require_distinct
from service.api.dependencies import AppStateDep, JobId, NowDep, UserDep, after_query
from service.api.json_body import SlotRoute
from service.core.errors import InvalidRequestError, NotFoundError
from service.core.resources import resource_of
from service.db.models import Job, Media
from service.db.paging import PageRequest
from service.jobs.repository import JobRepository
from service.jobs.schemas import page_of
from service.media.repository import MediaFilter, MediaRepository
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.stored_name import stored_name
from trainyard.contract.wire.media import (
    ComparedMediaKeys,
    ComparedMediaSteps,
    JobMediaKeys,
    JobMediaSteps,
    MediaKeysResource,
    MediaResource,
    MediaType,
)
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs/{job_id}/media", tags=["media"], route_class=SlotRoute)

compared_router = APIRouter(prefix="/v1/media", tags=["media"], route_class=SlotRoute)

_ID = r"^[0-9]{1,18}$"


@router.get("", operation_id="list_media")
def list_page(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    key: Annotated[
        str | None, Query(max_length=4000, description="Only media that were logged under this name.")
    ] = None,
    type: Annotated[MediaType | None, Query(description="Only media of this type.")] = None,
    from_step: Annotated[int, Query(ge=0, le=MAX_SAFE_INT, description="Omit earlier steps.")] = 0,
    to_step: Annotated[int, Query(ge=0, le=MAX_SAFE_INT, description="Omit later steps.")] = MAX_SAFE_INT,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of media.")] = 100,
    after: Annotated[str | None, after_query(_ID)] = None,
) -> Page[MediaResource]:
    """List images, tables, histograms and other media that the job's program logged, in the order of their reports."""
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequestError(f"{after!r} is not the id of a medium", param="after")
    selected = MediaFilter(None if key is None else stored_name(key), type, from_step, to_step)
    with app_state.database.read() as session:
        job = JobRepository(session, now).get(job_id)
        page = PageRequest(limit, after, descending=False)
        rows, has_more = MediaRepository(session, app_state.database).list_page(job, selected, page)
        return page_of(rows, has_more, _resource, lambda row: str(row.pk))


@router.get("/keys", operation_id="list_media_keys")
def list_keys(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> MediaKeysResource:
    """List the names under which the job's program logged media, each with the number of media and their steps."""
    with app_state.database.read() as session:
        job = JobRepository(session, now).get(job_id)
        return MediaKeysResource(data=MediaRepository(session, app_state.database).keys(job))


@compared_router.get("/keys", operation_id="compare_media_keys")
def compare_keys(app_state: AppStateDep, _user: UserDep, now: NowDep, job: ComparedJobs) -> ComparedMediaKeys:
    """List the names under which the programs of several jobs logged media."""
    require_distinct(job)
    with app_state.database.read() as session:
        media = MediaRepository(session, app_state.database)
        rows = [JobMediaKeys(job_id=one.id, data=media.keys(one)) for one in _jobs(session, now, job)]
    return ComparedMediaKeys(data=rows)


@compared_router.get("/steps", operation_id="compare_media_steps")
def compare_steps(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job: ComparedJobs,
    key: Annotated[
        str, Query(max_length=4000, description="The name under which the media were logged.", examples=["samples"])
    ],
) -> ComparedMediaSteps:
    """List the steps at which several jobs have media under a name."""
    require_distinct(job)
    name = stored_name(key)
    with app_state.database.read() as session:
        media = MediaRepository(session, app_state.database)
        rows = [JobMediaSteps(job_id=one.id, steps=media.steps(one, name)) for one in _jobs(session, now, job)]
    return ComparedMediaSteps(data=rows)


def _jobs(session: Session, now: datetime, job_ids: Sequence[str]) -> list[Job]:
    try:
        return [JobRepository(session, now).get(job_id) for job_id in job_ids]
    except NotFoundError as error:
        error.param = "job"
        raise


def _resource(row: Media) -> MediaResource:
    return resource_of(MediaResource, row, id=str(row.pk))
