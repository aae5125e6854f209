"""Changed copies: the spec of a job with exactly the changes that a user saw, for a new job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.core.errors import ConflictError
from service.db.engine import Database
from service.jobs.listing import free_name
from service.jobs.repository import JobRepository
from trainyard.contract.problems import SpecError
from trainyard.contract.proposals import StaleChange, apply_changes, spec_text
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import MAX_LABELS
from trainyard.contract.wire.jobs import ProposedChange
from trainyard.contract.wire.lineage import FORKED_FROM

_MAX_VALUE = 80
"""Characters of a value in a message."""


@dataclass(frozen=True)
class ChangedCopy:
    """The document of a changed spec."""

    document: dict[str, Any]
    source_name: str
    """The name of the job that was copied."""


def changed_copy(database: Database, job_id: str, changes: Sequence[ProposedChange], now: datetime) -> ChangedCopy:
    """Return the spec of a job with the changes, with a free name and a label that names the job.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: a field has another value than a change names, or the spec is not valid in this release.
    """
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
    try:
        spec = parse_stored_spec(job.spec)
    except SpecError as error:
        raise ConflictError(f"the spec of job {job.id} is not valid in this release: {error}") from None
    document, stale = apply_changes(spec, changes)
    if stale:
        raise _conflict(job.id, stale)
    labels = {**(document.get("metadata") or {}), FORKED_FROM: job.id}
    if len(labels) <= MAX_LABELS:
        document["metadata"] = labels
    if job.project is not None:
        document["project"] = job.project  # It may have been moved since its submission.
    document["name"] = free_name(database, job.name, now)
    return ChangedCopy(document, job.name)


def _conflict(job_id: str, stale: Sequence[StaleChange]) -> ConflictError:
    values = "; ".join(f"`{one.field}` is {_short(one.now)} and not {_short(one.before)}" for one in stale)
    message = f"job {job_id} has changed: {values}. Nothing was submitted; read the job again for its changes"
    return ConflictError(message, code="job_changed", param=stale[0].field)


def _short(value: Any) -> str:
    text = spec_text(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
