"""Routes of created projects: list, create, show, change, delete, their members and what they use."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep, window_of
from service.api.idempotency import UnsupportedKey, reject_key
from service.api.json_body import JsonRoute
from service.audit.log import add_audit_detail
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.projects.service import Projects
from trainyard.contract.base import MAX_DISPLAY_NAME
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.projects import (
    MemberRequest,
    MemberResource,
    ProjectChanges,
    ProjectDetail,
    ProjectRequest,
    ProjectResource,
    ProjectUsage,
)

router = APIRouter(prefix="/v1/projects", tags=["projects"], route_class=JsonRoute)

_NAME = r"^[^/\x00-\x1f\x7f]+$"
ProjectName = Annotated[
    str,
    Path(
        max_length=MAX_DISPLAY_NAME,
        pattern=_NAME,
        description="Name of the project, in any case of its letters.",
        examples=["zoo"],
    ),
]
MemberName = Annotated[
    str, Path(max_length=64, pattern=USER_NAME_PATTERN, description="Name of the user.", examples=["anna"])
]
ProjectWindowDep = Annotated[PageRequest, Depends(window_of(_NAME, order="asc", key="name"))]


async def get_projects(app_state: AppStateDep) -> Projects:
    return Projects(app_state.database)


ProjectsDep = Annotated[Projects, Depends(get_projects)]


@router.get("", operation_id="list_projects")
def list_all(projects: ProjectsDep, user: UserDep, window: ProjectWindowDep) -> Page[ProjectResource]:
    """List the created projects by name: open projects, and private projects of which you are a member."""
    rows, has_more = projects.list_page(user, window)
    return page_of(rows, has_more, lambda row: row, lambda row: row.name)


@router.post("", status_code=201, operation_id="create_project")
def create(
    projects: ProjectsDep, user: EditorDep, now: NowDep, body: ProjectRequest, idempotency_key: UnsupportedKey = None
) -> ProjectDetail:
    """Create a project, as its manager. Jobs that have its name as their project belong to it from now on."""
    reject_key(idempotency_key)
    return projects.create(user, body, now)


@router.get("/{project}", operation_id="get_project")
def get(projects: ProjectsDep, user: UserDep, project: ProjectName) -> ProjectDetail:
    """Get a project with its members."""
    return projects.read(user, project)


@router.patch("/{project}", operation_id="change_project")
def change(projects: ProjectsDep, user: EditorDep, project: ProjectName, body: ProjectChanges) -> ProjectDetail:
    """Change the description or the visibility of a project, as its manager, or its quotas, as an administrator."""
    add_audit_detail(**body.model_dump(exclude_unset=True, exclude={"description"}))
    return projects.change(user, project, body)


@router.delete("/{project}", status_code=204, operation_id="delete_project")
def delete(projects: ProjectsDep, user: EditorDep, project: ProjectName) -> None:
    """Delete a project, as its manager. Its jobs stay, with its name as a label that everybody can use."""
    projects.delete(user, project)


@router.get("/{project}/usage", operation_id="get_project_usage")
def usage(projects: ProjectsDep, _user: UserDep, project: ProjectName) -> ProjectUsage:
    """Get what the jobs of a project use now, and its quotas."""
    return projects.usage(project)


@router.put("/{project}/members/{member}", operation_id="set_project_member")
def set_member(
    projects: ProjectsDep, user: EditorDep, project: ProjectName, member: MemberName, body: MemberRequest
) -> MemberResource:
    """Add a member to a project, or change the role of a member, as a manager."""
    add_audit_detail(role=body.role)
    return projects.set_member(user, project, member, body)


@router.delete("/{project}/members/{member}", status_code=204, operation_id="remove_project_member")
def remove_member(projects: ProjectsDep, user: EditorDep, project: ProjectName, member: MemberName) -> None:
    """Remove a member from a project, as a manager, or yourself. Open streams of the member get no further message."""
    projects.remove_member(user, project, member)
