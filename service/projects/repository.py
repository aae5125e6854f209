"""All SQL about created projects and their members."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.auth.principals import Principal
from service.core.errors import NotFoundError
from service.db.engine import Database
from service.db.models import Job, Project, ProjectMember, SavedView, Sweep, Token
from service.db.paging import PageRequest, fetch_page
from service.projects.rules import ProjectFacts, project_key
from trainyard.contract.wire.jobs import TERMINAL

_JOBS: Any = Job.__table__
_SWEEPS: Any = Sweep.__table__
_PROJECTS: Any = Project.__table__
_MEMBERS: Any = ProjectMember.__table__


class ProjectRepository:
    """Projects within a session. Methods that a rule needs see every project; all others what the caller sees."""

    def __init__(self, session: Session):
        self._session = session

    # -- facts for rules, whatever the caller sees -----------------------------------------------------------------

    def facts(self, name: str | None, principal: Principal) -> ProjectFacts | None:
        """Return the created project of this name in any case of its letters, and the user's role in it."""
        project = self.quotas_of(name)
        if project is None:
            return None
        query = sa.select(_MEMBERS.c.role)
        query = query.where(_MEMBERS.c.project == project.name, _MEMBERS.c.member == principal.name)
        return replace(project, role=self._session.execute(query).scalar())

    def quotas_of(self, name: str | None) -> ProjectFacts | None:
        """Return the created project of this name in any case of its letters, without a role."""
        if name is None:
            return None
        columns = (_PROJECTS.c.name, _PROJECTS.c.is_private, _PROJECTS.c.max_gpus, _PROJECTS.c.max_queued)
        query = sa.select(*columns).where(_PROJECTS.c.key == project_key(name))
        row = self._session.execute(query).first()
        if row is None:
            return None
        return ProjectFacts(row.name, row.is_private, None, row.max_gpus, row.max_queued)

    def canonical_name(self, name: str | None) -> str | None:
        """Return a project's name as it was created; the same text if nobody has created it."""
        if name is None:
            return None
        query = sa.select(_PROJECTS.c.name).where(_PROJECTS.c.key == project_key(name))
        created: str | None = self._session.execute(query).scalar()
        return name if created is None else created

    def count_queued(self, project: str) -> int:
        query = sa.select(sa.func.count()).where(_JOBS.c.project == project, _JOBS.c.status == "queued")
        return self._session.execute(query).scalar() or 0

    def readers(self, projects: Collection[str]) -> dict[str, frozenset[str]]:
        """Return who reads the jobs of each private project among these, administrators aside."""
        query = (
            sa.select(_PROJECTS.c.name, _MEMBERS.c.member)
            .outerjoin(_MEMBERS, _MEMBERS.c.project == _PROJECTS.c.name)
            .where(_PROJECTS.c.is_private, _PROJECTS.c.name.in_(projects))
        )
        members: dict[str, set[str]] = {}
        for name, member in self._session.execute(query) if projects else ():
            members.setdefault(name, set()).update([] if member is None else [member])
        return {name: frozenset(names) for name, names in members.items()}

    def gpu_quotas(self) -> dict[str, int]:
        """Return the GPU quota of each project that has one."""
        query = sa.select(_PROJECTS.c.name, _PROJECTS.c.max_gpus).where(_PROJECTS.c.max_gpus.is_not(None))
        return {name: limit for name, limit in self._session.execute(query)}

    # -- reads -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Project:
        """Raises NotFoundError."""
        row = self._session.scalar(sa.select(Project).where(Project.key == project_key(name)))
        if row is None:
            raise NotFoundError(f"there is no project {name!r}", code="project_not_found", param="project")
        return row

    def get_for_update(self, name: str) -> Project:
        """Return the current row and lock it: other writers of the project wait until this transaction ends."""
        query = sa.select(Project).where(Project.name == self.get(name).name).with_for_update()
        return self._session.scalars(query.execution_options(populate_existing=True)).one()

    def list_page(self, page: PageRequest) -> tuple[list[Project], bool]:
        """Return a page by name, and whether more follow."""
        return fetch_page(self._session, sa.select(Project), Project.name, page)

    def roles_of(self, user: str, projects: Iterable[str]) -> dict[str, Any]:
        """Return the user's role in each of these projects of which the user is a member."""
        query = sa.select(_MEMBERS.c.project, _MEMBERS.c.role).where(
            _MEMBERS.c.member == user, _MEMBERS.c.project.in_(list(projects))
        )
        return {name: role for name, role in self._session.execute(query)}

    def members(self, project: str) -> Sequence[ProjectMember]:
        query = sa.select(ProjectMember).where(ProjectMember.project == project).order_by(ProjectMember.member)
        return self._session.scalars(query).all()

    def member(self, project: str, name: str) -> ProjectMember | None:
        return self._session.get(ProjectMember, (project, name))

    def count_managers(self, project: str) -> int:
        query = sa.select(sa.func.count()).where(_MEMBERS.c.project == project, _MEMBERS.c.role == "manager")
        return self._session.execute(query).scalar() or 0

    def count_created(self, user: str) -> int:
        query = sa.select(sa.func.count()).where(_PROJECTS.c.created_by == user)
        return self._session.execute(query).scalar() or 0

    def usage(self, project: str) -> dict[str, int]:
        """Return what the jobs of a project use, as the fields of `ProjectUsage`."""
        unfinished = Job.status.not_in(tuple(TERMINAL))
        held = sa.and_(unfinished, Job.status.not_in(("queued", "paused")))
        columns = {
            "jobs": sa.func.count(),
            "unfinished": sa.func.sum(sa.case((unfinished, 1), else_=0)),
            "queued": sa.func.sum(sa.case((Job.status == "queued", 1), else_=0)),
            "gpus": sa.func.sum(sa.case((held, Job.gpus), else_=0)),
            "disk_bytes": sa.func.sum(sa.func.coalesce(Job.disk_bytes, 0)),
        }
        query = sa.select(*columns.values()).where(Job.project == project, Job.deletion_requested_at.is_(None))
        row = self._session.execute(query).one()
        return {name: int(value or 0) for name, value in zip(columns, row, strict=True)}

    # -- changes ---------------------------------------------------------------------------------------------------

    def labels_like(self, name: str) -> dict[str, set[str]]:
        """Return the labels of jobs and sweeps that are this name in any case, each with the owners of the jobs."""
        key = project_key(name)
        labels: dict[str, set[str]] = {}
        for table in (_JOBS, _SWEEPS):
            query = sa.select(table.c.project).where(table.c.project.is_not(None)).distinct()
            for label in self._session.execute(query).scalars().all():
                if project_key(label) == key:
                    owners = sa.select(table.c.created_by).where(table.c.project == label).distinct()
                    labels.setdefault(label, set()).update(self._session.execute(owners).scalars())
        return labels

    def rename_labels(self, labels: Collection[str], name: str) -> None:
        """Give jobs and sweeps with these labels the name of the created project."""
        for table in (_JOBS, _SWEEPS):
            others = [label for label in labels if label != name]
            if others:
                self._session.execute(sa.update(table).where(table.c.project.in_(others)).values(project=name))

    def add_new(self, database: Database, project: Project) -> bool:
        """Add a project; False if there is one of this name, also if another process has just added it."""
        values = {column.name: getattr(project, column.name) for column in _PROJECTS.columns}
        values |= {"description": project.description, "is_private": bool(project.is_private)}
        insert = database.insert(Project).values(values).on_conflict_do_nothing().returning(_PROJECTS.c.name)
        return self._session.execute(insert).scalar() is not None

    def add_member(self, member: ProjectMember) -> None:
        self._session.add(member)
        self._session.flush()

    def remove_member(self, member: ProjectMember) -> None:
        self._session.delete(member)

    def delete(self, project: Project) -> None:
        """Delete a project. Its jobs, sweeps and views stay, and its name is a label again.

        Only their owners see views of a private project from then on.
        """
        if project.is_private:
            views = sa.update(SavedView).where(SavedView.project == project.name)
            self._session.execute(views.values(shared=False).execution_options(synchronize_session=False))
        self._session.execute(sa.delete(ProjectMember).where(ProjectMember.project == project.name))
        self._session.delete(project)

    def count_tokens(self, project: str) -> int:
        """Count the tokens that are valid for this project alone and were not revoked."""
        query = sa.select(sa.func.count()).select_from(Token)
        return self._session.scalar(query.where(Token.project == project, Token.revoked_at.is_(None))) or 0
