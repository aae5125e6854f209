"""Orphans: entries of the scheduler's queue and run directories that no job of the database names."""

from typing import Literal

from pydantic import Field, model_validator

from trainyard.contract.base import EXAMPLE_JOB, Resource, Strict, Timestamp
from trainyard.contract.wire.access import UserName


class OrphanResource(Resource):
    """An entry of the scheduler's queue, or a run directory, that no job of the database names."""

    object: Literal["orphan"] = "orphan"
    id: str = Field(examples=[EXAMPLE_JOB])
    job_id: str | None = Field(default=None, examples=[EXAMPLE_JOB])
    """None: no run directory was recognized."""
    name: str | None = Field(default=None, examples=["parity"])
    """The job's name, from the spec in its run directory."""
    created_by: str | None = Field(default=None, examples=["alice"])
    """The user who submitted the job, according to its run directory, which the job can change."""
    tag: str | None = Field(default=None, examples=["ty-main-0123456789abcdef"])
    """The attempt's name in the scheduler."""
    scheduler_id: str | None = Field(default=None, examples=["4711"])
    """None: it is not in the scheduler's queue."""
    state: Literal["pending", "running"] | None = Field(default=None, examples=["running"])
    folder: str | None = Field(default=None, examples=["/shared/runs/job_01kdvdna00az9cxjnszk8v8abh"])
    """The run directory."""
    first_observed_at: Timestamp
    requested: Literal["cancel", "adopt"] | None = None
    """The action that an administrator has requested; the reconciler performs it."""
    message: str = Field(default="", examples=[""])
    """Why the request could not be fulfilled."""


class JobCreator(Strict):
    """`created_by.json`: who submitted the job. The job can change it, so it is shown and grants nothing."""

    created_by: UserName


class OrphanRequest(Strict):
    """The body of `POST /v1/orphans/{id}/resolve`: the action for an orphan."""

    action: Literal["cancel", "adopt"] = Field(examples=["adopt"])
    """`cancel`: remove it from the scheduler's queue. `adopt`: make a job from its run directory."""
    owner: UserName | None = None
    """The user to whom an adopted job belongs. Absent: the caller."""

    @model_validator(mode="after")
    def _check_owner(self) -> "OrphanRequest":
        if self.owner is not None and self.action != "adopt":
            raise ValueError("owner is for action adopt only")
        return self
