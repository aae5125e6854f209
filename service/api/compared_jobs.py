"""The query parameter that names the jobs of a request about several."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from service.core.errors import InvalidRequestError
from trainyard.contract.base import EXAMPLE_JOB

MAX_JOBS = 20

ComparedJobs = Annotated[
    list[str],
    Query(
        min_length=1,
        max_length=MAX_JOBS,
        description="The id of a job; may be repeated, each id once.",
        json_schema_extra={"uniqueItems": True},
        examples=[[EXAMPLE_JOB]],
    ),
]


def require_distinct(job_ids: Sequence[str]) -> None:
    """Raises InvalidRequestError: an id is repeated."""
    if len(set(job_ids)) < len(job_ids):
        raise InvalidRequestError("contains a job twice", param="job")
