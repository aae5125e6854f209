"""Created projects: request bodies and resources. A project that nobody has created is only a label of jobs."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from trainyard.contract.base import DisplayName, Resource, Strict, Timestamp, example, reject_bool
from trainyard.contract.wire.access import UserName

ProjectRole = Literal["viewer", "member", "manager"]
"""`viewer`: reads the jobs of a private project. `member`: also submits into the project, and cancels and restarts its
jobs. `manager`: also changes the project and its members."""
Visibility = Literal["open", "private"]

MAX_PROJECTS = 1000
"""Maximum number of projects that a user creates."""
MAX_MEMBERS = 1000
_Description = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$")]
_Limit = Annotated[int, Field(ge=0, le=1_000_000), BeforeValidator(reject_bool)]


class ProjectRequest(Strict):
    """The body of `POST /v1/projects`."""

    model_config = example(description="Classifies animals.", visibility="private")

    name: DisplayName = Field(examples=["zoo"])
    """Jobs belong to it by this name, in any case of its letters. It has no slash."""
    description: _Description = ""
    visibility: Visibility = "open"
    """`open`: everybody reads its jobs. `private`: only its members and administrators do."""


class ProjectChanges(Strict):
    """The body of `PATCH /v1/projects/{project}`. Omitted fields do not change."""

    model_config = example(visibility="private")

    description: _Description | None = None
    visibility: Visibility | None = None
    max_gpus: _Limit | None = None
    """GPUs that its jobs use at once; null: no limit. Administrators only."""
    max_queued: _Limit | None = None
    """Its jobs that wait to be submitted to the scheduler; null: no limit. Administrators only."""


class MemberRequest(Strict):
    """The body of `PUT /v1/projects/{project}/members/{member}`."""

    role: ProjectRole = Field(default="member", examples=["member"])


class MemberResource(Resource):
    """A member of a project."""

    object: Literal["project_member"] = "project_member"
    project: str = Field(examples=["zoo"])
    name: UserName = Field(examples=["anna"])
    role: ProjectRole = Field(examples=["member"])


class ProjectResource(Resource):
    """A created project."""

    object: Literal["project"] = "project"
    name: str = Field(examples=["zoo"])
    description: str = Field(default="", examples=["Classifies animals."])
    visibility: Visibility = Field(examples=["private"])
    created_by: str
    created_at: Timestamp
    max_gpus: int | None = Field(default=None, examples=[16])
    """GPUs that its jobs use at once; null: no limit."""
    max_queued: int | None = None
    """Its jobs that wait to be submitted to the scheduler; null: no limit."""
    role: ProjectRole | None = Field(default=None, examples=["manager"])
    """The caller's role; null: no member."""
    may_submit: bool = Field(examples=[True])
    """Whether the caller submits jobs into it."""
    may_manage: bool = Field(examples=[True])
    """Whether the caller changes it and its members."""


class ProjectDetail(ProjectResource):
    """A created project with its members."""

    members: list[MemberResource]


class ProjectUsage(Resource):
    """What the jobs of a project use now."""

    object: Literal["project_usage"] = "project_usage"
    project: str = Field(examples=["zoo"])
    jobs: int = Field(examples=[12])
    """Jobs that were not deleted."""
    unfinished: int = Field(examples=[3])
    queued: int = Field(examples=[1])
    """Jobs that wait to be submitted to the scheduler."""
    gpus: int = Field(examples=[8])
    """GPUs that the scheduler holds for its jobs, or may hold."""
    disk_bytes: int = Field(examples=[1024])
    max_gpus: int | None = Field(default=None, examples=[16])
    max_queued: int | None = None
