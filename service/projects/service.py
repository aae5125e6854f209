"""The requests of users about projects: create, list, change, delete, and their members. Each is a transaction."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from service.audit.log import set_audit_target
from service.auth.principals import Principal
from service.auth.repository import TokenRepository
from service.core.errors import ConflictError, InvalidRequestError, NotFoundError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import Project, ProjectMember
from service.db.paging import PageRequest
from service.projects.repository import ProjectRepository
from service.projects.rules import Access, ProjectFacts, access_of, check_name, may_change_job, project_key
from trainyard.contract.wire.projects import (
    MAX_MEMBERS,
    MAX_PROJECTS,
    MemberRequest,
    MemberResource,
    ProjectChanges,
    ProjectDetail,
    ProjectRequest,
    ProjectResource,
    ProjectRole,
    ProjectUsage,
)

_QUOTAS = frozenset({"max_gpus", "max_queued"})


@dataclass(frozen=True)
class Projects:
    """The created projects of a service."""

    database: Database

    def list_page(self, principal: Principal, page: PageRequest) -> tuple[list[ProjectResource], bool]:
        """Return a page of the projects that the user sees, by name, and whether more follow."""
        with self.database.read() as session:
            projects = ProjectRepository(session)
            rows, has_more = projects.list_page(page)
            roles = projects.roles_of(principal.name, [row.name for row in rows])
        return [_resource(row, principal, roles.get(row.name)) for row in rows], has_more

    def read(self, principal: Principal, name: str) -> ProjectDetail:
        """Return a project with its members. Raises NotFoundError."""
        with self.database.read() as session:
            projects = ProjectRepository(session)
            return _detail(projects, projects.get(name), principal)

    def usage(self, name: str) -> ProjectUsage:
        """Return what the jobs of a project use. Raises NotFoundError."""
        with self.database.read() as session:
            projects = ProjectRepository(session)
            row = projects.get(name)
            used = projects.usage(row.name)
        return ProjectUsage(project=row.name, max_gpus=row.max_gpus, max_queued=row.max_queued, **used)

    def create(self, principal: Principal, request: ProjectRequest, now: datetime) -> ProjectDetail:
        """Create a project with its creator as manager. Jobs that have its name as a label belong to it from now on.

        Raises:
            ConflictError: there is a project of this name, or jobs of others have the name as a label.
        """
        check_name(request.name)
        row = Project(
            name=request.name,
            key=project_key(request.name),
            description=request.description,
            is_private=request.visibility == "private",
            created_by=principal.name,
            created_at=now,
        )
        with self.database.write() as session:
            projects = ProjectRepository(session)
            if principal.role != "admin" and projects.count_created(principal.name) >= MAX_PROJECTS:
                message = f"{principal.name} has created {MAX_PROJECTS} projects, the limit per user"
                raise ConflictError(message, code="too_many_projects")
            if not projects.add_new(self.database, row):
                message = f"there is a project {request.name!r} already, or one whose name differs only by case"
                raise ConflictError(message, code="project_exists", param="name")
            _require_free_of_users(session, principal, request.name)
            labels = projects.labels_like(request.name)
            if principal.role != "admin" and set().union(*labels.values()) - {principal.name}:
                message = (
                    f"jobs of others have {request.name!r} as their project; only an administrator can create it, or "
                    "give another name"
                )
                raise ConflictError(message, code="project_in_use", param="name")
            projects.rename_labels(labels, request.name)
            projects.add_member(ProjectMember(project=row.name, member=principal.name, role="manager"))
            set_audit_target(row.name)
            return _detail(projects, projects.get(row.name), principal)

    def require_created(self, name: str) -> str:
        """Return the name of a created project. Raises InvalidRequestError: nobody has created it."""
        with self.database.read() as session:
            project = ProjectRepository(session).quotas_of(name)
        if project is None:
            message = f"names no created project: {name!r}; create it first: trainyard projects create"
            raise InvalidRequestError(message, param="project", code="project_not_found")
        return project.name

    def change(self, principal: Principal, name: str, changes: ProjectChanges) -> ProjectDetail:
        """Change the description, the visibility or the quotas of a project.

        Raises:
            NotFoundError: there is no such project.
            PermissionDeniedError: the user does not manage it, or is no administrator and changes a quota.
        """
        with self.database.write() as session:
            projects = ProjectRepository(session)
            row = _managed(projects, principal, name)
            given = changes.model_fields_set
            if given & _QUOTAS and principal.role != "admin":
                raise PermissionDeniedError(
                    "only administrators can change the quotas of a project",
                    code="admin_required",
                    param=min(given & _QUOTAS),
                )
            row.description = row.description if changes.description is None else changes.description
            row.is_private = row.is_private if changes.visibility is None else changes.visibility == "private"
            for field in sorted(given & _QUOTAS):
                setattr(row, field, getattr(changes, field))
            session.flush()
            return _detail(projects, row, principal)

    def delete(self, principal: Principal, name: str) -> None:
        """Delete a project: its jobs stay and have its name as a label, which everybody reads.

        Raises:
            NotFoundError: there is no such project.
            PermissionDeniedError: the user does not manage it.
            ConflictError: it is private and has jobs, which everybody would read, or tokens are valid for it alone.
        """
        with self.database.write() as session:
            projects = ProjectRepository(session)
            row = _managed(projects, principal, name)
            jobs = projects.usage(row.name)["jobs"]
            if row.is_private and (jobs or row.name in projects.labels_like(row.name)):
                message = (
                    f"the project {row.name!r} is private, and everybody would read its jobs: delete or move them "
                    "first, or make it open"
                )
                raise ConflictError(message, code="project_in_use")
            if tokens := projects.count_tokens(row.name):
                named, them = ("1 token is", "it") if tokens == 1 else (f"{tokens} tokens are", "them")
                message = (
                    f"{named} valid only for the project {row.name!r}; revoke {them} first: trainyard tokens revoke"
                )
                raise ConflictError(message, code="project_in_use")
            projects.delete(row)

    def set_member(self, principal: Principal, name: str, user: str, request: MemberRequest) -> MemberResource:
        """Add a member, or change the role of a member.

        Raises:
            NotFoundError: there is no such project.
            PermissionDeniedError: the user does not manage it.
            ConflictError: it would have no manager, or too many members.
        """
        with self.database.write() as session:
            projects = ProjectRepository(session)
            row = _managed(projects, principal, name)
            user = TokenRepository(session).name_in_any_case(user) or user
            member = projects.member(row.name, user)
            if member is None:
                if len(projects.members(row.name)) >= MAX_MEMBERS:
                    message = f"the project {row.name!r} has {MAX_MEMBERS} members, the limit"
                    raise ConflictError(message, code="too_many_members")
                member = ProjectMember(project=row.name, member=user, role=request.role)
                projects.add_member(member)
            elif request.role != member.role:
                _require_other_manager(projects, principal, member)
                member.role = request.role
            return _member(member)

    def remove_member(self, principal: Principal, name: str, user: str) -> None:
        """Remove a member; members remove themselves.

        Raises:
            NotFoundError: there is no such project or member.
            PermissionDeniedError: the user does not manage it.
            ConflictError: it would have no manager.
        """
        with self.database.write() as session:
            projects = ProjectRepository(session)
            row = projects.get_for_update(name)
            if user != principal.name:
                _managed(projects, principal, name)
            member = projects.member(row.name, user)
            if member is None:
                message = f"{user!r} is not a member of the project {row.name!r}"
                raise NotFoundError(message, code="member_not_found", param="member")
            _require_other_manager(projects, principal, member)
            projects.remove_member(member)


def _require_free_of_users(session: Session, principal: Principal, name: str) -> None:
    """Raises ConflictError: the name is of another user, whose jobs may belong to a project of this name by default."""
    if principal.role == "admin" or project_key(name) == project_key(principal.name):
        return
    tokens = TokenRepository(session)
    if tokens.name_in_any_case(name) or tokens.name_at_provider(name):
        message = f"{name!r} is the name of a user, who alone can create a project of this name; give another name"
        raise ConflictError(message, code="project_in_use", param="name")


def _managed(projects: ProjectRepository, principal: Principal, name: str) -> Project:
    row = projects.get_for_update(name)
    facts = _facts(row, projects.roles_of(principal.name, [row.name]).get(row.name))
    if access_of(principal, facts) < Access.MANAGE:
        message = f"only managers of the project {row.name!r} and administrators can change it"
        raise PermissionDeniedError(message, code="project_manager_required")
    return row


def _require_other_manager(projects: ProjectRepository, principal: Principal, member: ProjectMember) -> None:
    if principal.role != "admin" and member.role == "manager" and projects.count_managers(member.project) == 1:
        message = f"{member.member} is the only manager of {member.project!r}; first make another member a manager"
        raise ConflictError(message, code="last_manager")


def _facts(row: Project, role: ProjectRole | None) -> ProjectFacts:
    return ProjectFacts(row.name, row.is_private, role, row.max_gpus, row.max_queued)


def _detail(projects: ProjectRepository, row: Project, principal: Principal) -> ProjectDetail:
    members = [_member(member) for member in projects.members(row.name)]
    role = next((member.role for member in members if member.name == principal.name), None)
    return ProjectDetail(**_resource(row, principal, role).model_dump(), members=members)


def _resource(row: Project, principal: Principal, role: ProjectRole | None) -> ProjectResource:
    access = access_of(principal, _facts(row, role))
    return ProjectResource(
        name=row.name,
        description=row.description,
        visibility="private" if row.is_private else "open",
        created_by=row.created_by,
        created_at=row.created_at,
        max_gpus=row.max_gpus,
        max_queued=row.max_queued,
        role=role,
        may_submit=access >= Access.SUBMIT,
        may_manage=access >= Access.MANAGE,
    )


def _member(row: ProjectMember) -> MemberResource:
    return MemberResource(project=row.project, name=row.member, role=row.role)


def may_change(database: Database, principal: Principal, owner: str, project: str | None) -> bool:
    """Return whether a user may cancel, restart and edit a job of an owner in a project."""
    with database.read() as session:
        return may_change_job(principal, owner, ProjectRepository(session).facts(project, principal))
