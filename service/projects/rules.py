"""What a user may do in a project, and with its jobs. Pure functions.

The SQL of the rule for reading is in `service.db.visibility`.
"""

import unicodedata
from dataclasses import dataclass
from enum import IntEnum

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, PermissionDeniedError
from trainyard.contract.problems import Problem
from trainyard.contract.wire.projects import ProjectRole


class Access(IntEnum):
    """What a user may do in a project; each level includes those before it."""

    NONE = 0
    READ = 1
    SUBMIT = 2
    """Submit jobs into it, move jobs into and out of it, and cancel and restart its jobs."""
    MANAGE = 3
    """Change it and its members."""


@dataclass(frozen=True)
class ProjectFacts:
    """A created project, as far as rules need it."""

    name: str
    is_private: bool
    role: ProjectRole | None
    """The role of the user in question; None: no member."""
    max_gpus: int | None = None
    max_queued: int | None = None

    @property
    def has_quota(self) -> bool:
        return self.max_gpus is not None or self.max_queued is not None


_OF_ROLE = {"viewer": Access.READ, "member": Access.SUBMIT, "manager": Access.MANAGE}


def project_key(name: str) -> str:
    """Return the text that all spellings of a project's name have in common: `Zoo` and `zoo` are one project."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def access_of(principal: Principal, project: ProjectFacts | None) -> Access:
    """Return what a user may do in a project.

    Args:
        project: None: a label that nobody has created as a project. Everybody reads its jobs, and users submit.
    """
    if principal.project is not None and (project is None or project.name != principal.project):
        return Access.NONE
    # A project token is for programs, which manage nothing.
    most = Access.MANAGE if principal.project is None else Access.SUBMIT
    if principal.role == "admin":
        return most
    if principal.role == "viewer":
        most = Access.READ
    if project is None:
        return min(most, Access.SUBMIT)
    if project.role is None:
        return Access.NONE if project.is_private else Access.READ
    return min(most, _OF_ROLE[project.role])


def may_change_job(principal: Principal, owner: str, project: ProjectFacts | None) -> bool:
    """Return whether a user may cancel, restart and edit a job: owners, members of a created project, administrators.

    Owners who left an open project may still change their own jobs; in a private project they do not see them.
    """
    access = access_of(principal, project)
    if principal.role == "viewer" or access is Access.NONE:
        return False
    return principal.role == "admin" or owner == principal.name or (project is not None and access >= Access.SUBMIT)


def require_submit(principal: Principal, project: ProjectFacts | None) -> None:
    """Raises PermissionDeniedError: the user submits no jobs into the project."""
    if access_of(principal, project) >= Access.SUBMIT:
        return
    if principal.project is not None and (project is None or project.name != principal.project):
        message = f"the token is valid only for the project {principal.project!r}; name it in the spec"
        raise PermissionDeniedError(message, code="project_token", param="project")
    name = "" if project is None else f" {project.name!r}"
    raise PermissionDeniedError(
        f"only members of the project{name} can submit jobs to it, or move jobs into or out of it; ask one of its "
        "managers to add you, or use another project",
        code="project_member_required",
        param="project",
    )


def check_move(principal: Principal, source: ProjectFacts | None, target: ProjectFacts | None, *, ended: bool) -> None:
    """Check that a user may move a job from a project to another one.

    Raises:
        PermissionDeniedError: the user is not a member of a project.
        ConflictError: the job has not ended, and counts towards the quota of a project.
    """
    for project in (source, target):
        require_submit(principal, project)
    limited = next((one.name for one in (source, target) if one is not None and one.has_quota), None)
    if not ended and limited is not None and principal.role != "admin":
        message = f"the project {limited!r} has a quota, to which this job counts until it has ended; move it then"
        raise ConflictError(message, code="job_not_finished", param="project")


def check_project_quota(project: ProjectFacts | None, gpus: int, queued: int, count: int = 1) -> None:
    """Check that `count` more jobs of so many GPUs each may wait in a project.

    Args:
        queued: The project's jobs that wait already.

    Raises:
        InvalidSpecError: a job alone exceeds the GPU quota, and could never start.
        ConflictError: too many jobs wait.
    """
    if project is None:
        return
    if project.max_gpus is not None and gpus > project.max_gpus:
        message = (
            f"is {gpus}, more than the quota of {project.max_gpus} GPUs of the project {project.name!r}; use fewer, or "
            "ask an administrator to raise it"
        )
        raise InvalidSpecError([Problem(param="gpus", message=message)])
    if project.max_queued is not None and queued + count > project.max_queued:
        more = f"{count} more jobs do not fit; " if count > 1 else ""
        raise ConflictError(
            f"the project {project.name!r} has {queued} queued {'job' if queued == 1 else 'jobs'}; its quota is "
            f"{project.max_queued}: {more}cancel some, or submit again after they have started",
            code="too_many_queued",
        )


def check_name(name: str) -> None:
    """Raises InvalidRequestError: the name cannot be the name of a project."""
    if not project_key(name) or name != name.strip() or "/" in name or name in (".", ".."):
        message = "must be a text without a slash that neither begins nor ends with a space"
        raise InvalidRequestError(message, param="name", code="invalid_name")
