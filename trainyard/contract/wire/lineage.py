"""The origin of a job, and the jobs and versions made from it."""

from typing import Literal

from pydantic import Field

from trainyard.contract.base import Resource, example
from trainyard.contract.wire.jobs import JobStatus

FORKED_FROM = "forked_from"
"""The label in `metadata` that names the job whose spec was copied."""


class RelatedJob(Resource):
    """A job from which this job starts, or that starts from this job."""

    job_id: str
    name: str | None = None
    """None: the job is deleted, or the caller cannot see it."""
    status: JobStatus | None = None
    step: int | None = None
    """The step of the checkpoint from which the later of the two jobs starts. None: it took only the spec."""
    continues: bool = False
    """Whether the later job continues after that step; else it took only the weights."""


class RelatedDependency(Resource):
    """A job for which this job waits or has waited, or that waits or has waited for this job."""

    job_id: str
    name: str | None = None
    """None: the job is deleted, or the caller cannot see it."""
    status: JobStatus | None = None
    any_end: bool = False
    """Whether the earlier job may have ended in any way; else it must have succeeded."""


class UsedData(Resource):
    """Data that the spec names."""

    field: str
    """Path of the section in the spec."""
    source: str
    text: str
    """The name or path of the data, or the file's id."""
    file_id: str | None = None
    file_name: str | None = None
    """The name of an uploaded file, while it exists."""
    digest: str | None = None


class MadeVersion(Resource):
    """A version of a registered model."""

    model: str
    version: int
    step: int | None = None
    """None: the version is the job's export."""


class JobLineage(Resource):
    """The origin of a job, and the jobs and versions made from it."""

    model_config = example(
        ancestors=[{"job_id": "job_01kdvdna00az9cxjnszk8v8abg", "name": "base", "status": "succeeded", "step": 400}],
        data=[{"field": "data.name", "source": "builtin", "text": "digits"}],
    )

    object: Literal["job_lineage"] = "job_lineage"
    job_id: str
    ancestors: list[RelatedJob] = Field(default_factory=list)
    """The job from which this job starts, then its own origin, and so on: 20 at most."""
    forks: list[RelatedJob] = Field(default_factory=list)
    """Jobs that start from this job, oldest first."""
    has_more_forks: bool = False
    prerequisites: list[RelatedDependency] = Field(default_factory=list)
    """The jobs that `after` of the spec names."""
    dependents: list[RelatedDependency] = Field(default_factory=list)
    """Jobs whose `after` names this job, oldest first."""
    has_more_dependents: bool = False
    data: list[UsedData] = Field(default_factory=list)
    base: str | None = None
    """The base model: its folder, or its name in OpenAI's API."""
    base_versions: list[MadeVersion] = Field(default_factory=list)
    """Versions of registered models made of the job and step from which this job starts."""
    sweep_id: str | None = None
    versions: list[MadeVersion] = Field(default_factory=list, examples=[[{"model": "digits", "version": 3}]])
    """Versions of registered models that are of this job."""
