"""Orphans: what runs or lies on disk, and no job of the database names."""

from typing import Literal

from pydantic import ConfigDict

from trainyard.contract.base import Resource, Strict, Timestamp


class OrphanResource(Resource):
    """An entry of the scheduler's queue, or a run directory, that no job of the database names."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "orphan",
                "id": "job_01kdvdna00az9cxjnszk8v8abh",
                "job_id": "job_01kdvdna00az9cxjnszk8v8abh",
                "name": "parity",
                "tag": "ty-main-0123456789abcdef",
                "scheduler_id": "4711",
                "state": "running",
                "folder": "/shared/runs/job_01kdvdna00az9cxjnszk8v8abh",
                "first_observed_at": "2026-01-01T12:00:00.000Z",
                "requested": None,
                "message": "",
            }
        }
    )

    object: Literal["orphan"] = "orphan"
    id: str
    job_id: str | None = None
    """None: no run directory was recognized."""
    name: str | None = None
    """The job's name, from the spec in its run directory."""
    tag: str | None = None
    """The attempt's name in the scheduler."""
    scheduler_id: str | None = None
    """None: it is not in the scheduler's queue."""
    state: Literal["pending", "running"] | None = None
    folder: str | None = None
    """The run directory."""
    first_observed_at: Timestamp
    requested: Literal["cancel", "adopt"] | None = None
    """What an administrator has requested; the reconciler does it."""
    message: str = ""
    """Why the request could not be fulfilled."""


class OrphanRequest(Strict):
    """The body of `POST /v1/orphans/{id}/resolve`: what to do about an orphan."""

    action: Literal["cancel", "adopt"]
    """`cancel`: remove it from the scheduler's queue. `adopt`: make a job from its run directory."""
