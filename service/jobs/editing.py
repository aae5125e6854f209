"""Changes of a job by a user that do not touch its run: name, project, tags, notes, and whether it is archived."""

from collections.abc import Mapping

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError
from service.db.models import Job
from service.jobs.parameters import Entry, Reported
from service.jobs.repository import JobRepository
from service.jobs.service import JobAction
from service.jobs.table.values import reported_values
from service.projects.rules import check_move
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.reports import MAX_PARAMETER_CHARS, MAX_PARAMETERS
from trainyard.contract.wire.views import JobChanges

BY_USER = MAX_SAFE_INT
"""Stands for the execution of values that a user set: a report of the program never replaces them."""
EDITED = "edited"


def edit(changes: JobChanges, principal: Principal) -> JobAction:
    """Return the action that applies a user's changes; a value that equals the present value is not recorded again."""

    def action(jobs: JobRepository, job: Job, by: str) -> None:
        done = []
        if changes.name is not None and changes.name != job.name:
            done.append(f"renamed from {job.name!r} to {changes.name!r}")
            job.name = changes.name
        if changes.project is not None:
            target = _moved_to(jobs, job, changes.project or None, principal)
            if target != job.project:
                done.append(f"moved to project {target!r}" if target else "taken out of its project")
                job.project = target
        if changes.archived is not None and changes.archived != (job.archived_at is not None):
            if changes.archived and job.status not in TERMINAL:
                message = f"job {job.id} has status {job.status}; only a job that has ended can be archived"
                raise ConflictError(message, code="job_not_finished")
            done.append("archived" if changes.archived else "taken out of the archive")
            job.archived_at = jobs.now if changes.archived else None
        before = Reported.from_json(job.parameters)
        after = Reported(before.parameters, _with_tags(before.tags, changes.tags or {}), _notes(before, changes))
        if after != before:
            done += _describe(before, after)
            job.parameters = after.to_json()
            jobs.save_values(job, reported_values(before), reported_values(after))
        if done:
            jobs.add_event(job, EDITED, f"{'; '.join(done)} by {by}")

    return action


def _moved_to(jobs: JobRepository, job: Job, name: str | None, principal: Principal) -> str | None:
    """Return the project of a job that a user moves to a project; None: to no project.

    Raises:
        PermissionDeniedError: the user is not a member of the present project, or of the new one.
        ConflictError: the job has not ended, and a project has a quota.
    """
    source, target = jobs.projects.facts(job.project, principal), jobs.projects.facts(name, principal)
    name = name if target is None else target.name
    if name != job.project:
        check_move(principal, source, target, ended=job.status in TERMINAL)
    return name


def _with_tags(tags: Mapping[str, Entry], changes: Mapping[str, str | None]) -> dict[str, Entry]:
    merged = dict(tags)
    for name, text in changes.items():
        if text is None:
            merged.pop(name, None)
        elif name not in merged or merged[name][1] != text:
            merged[name] = (BY_USER, text)
    size = sum(len(name) + len(str(text)) for name, (_, text) in merged.items())
    if len(merged) > max(MAX_PARAMETERS, len(tags)) or (size > MAX_PARAMETER_CHARS and len(merged) > len(tags)):
        message = f"a job has at most {MAX_PARAMETERS} tags, of {MAX_PARAMETER_CHARS} characters; remove some first"
        raise InvalidRequestError(message, param="tags", code="too_many_tags")
    return merged


def _notes(before: Reported, changes: JobChanges) -> Entry | None:
    if changes.notes is None:
        return before.notes
    # An empty text stays, so that the program's notes do not return.
    present = "" if before.notes is None else before.notes[1]
    return before.notes if present == changes.notes else (BY_USER, changes.notes)


def _describe(before: Reported, after: Reported) -> list[str]:
    added = [name for name in after.tags if before.tags.get(name) != after.tags[name]]
    removed = [name for name in before.tags if name not in after.tags]
    parts = [(f"tagged {', '.join(added[:10])}", added), (f"tags removed: {', '.join(removed[:10])}", removed)]
    return [text for text, names in parts if names] + (["notes changed"] if before.notes != after.notes else [])
