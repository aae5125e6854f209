"""How a job may be named: its id, a part of the id, its name, or `last`. How a checkpoint is: its step or a mark."""

import re
from collections.abc import Sequence

from trainyard.client.errors import NotFoundError
from trainyard.contract.spec.prerequisites import ENDED
from trainyard.contract.wire.files import CheckpointResource

LAST = "last"
FINE_TUNED = "ft:"
"""Prefix of the names of models that OpenAI's API returns."""
CHECKPOINT_MARK = ":ckpt-step-"
"""Separator between such a name and the step of a checkpoint."""
SEARCH_LIMIT = 2000
"""Number of newest jobs that are searched for an abbreviated id."""
MIN_ABBREVIATION = 4
_WHOLE_ID = re.compile(r"[a-z]+_[0-9a-z]{26}", re.IGNORECASE)


def id_part(reference: str) -> str:
    """Return the part that names the job: the end of the name of a model of OpenAI's API,
    `ft:<base>:<user>:<suffix>:<end of the id>`, else the whole text."""
    if not reference.startswith(FINE_TUNED):
        return reference
    return reference.partition(CHECKPOINT_MARK)[0].rpartition(":")[2]


def split_end(reference: str) -> tuple[str, str]:
    """Split a reference to a prerequisite into the job and the suffix that permits any end, or an empty text."""
    job = reference.removesuffix(ENDED)
    return job, reference[len(job) :]


def is_whole_id(reference: str) -> bool:
    """Return whether the text has the form of a whole id, so that it is neither a part of an id nor a name."""
    return _WHOLE_ID.fullmatch(reference) is not None


def is_abbreviation(part: str, full_id: str) -> bool:
    """Return whether `part` is a prefix (with or without the kind) or suffix of the id, of at least four characters."""
    start, kind = part.lower(), full_id.partition("_")[0]
    return len(start) >= MIN_ABBREVIATION and (
        full_id.endswith(start) or full_id.startswith((start, f"{kind}_{start}"))
    )


def named_checkpoint(listed: Sequence[CheckpointResource], reference: str | int) -> CheckpointResource | None:
    """Return the checkpoint of this step, the `latest` or the `best`; None if it is not among these."""
    for candidate in listed:
        marks = {"latest": candidate.latest, "best": candidate.best}
        if str(reference) == str(candidate.step) or marks.get(str(reference), False):
            return candidate
    return None


def require_checkpoint(listed: Sequence[CheckpointResource], reference: str | int, job_id: str) -> CheckpointResource:
    """Return the checkpoint as `named_checkpoint` does. Raises NotFoundError, which lists the steps of these."""
    if (named := named_checkpoint(listed, reference)) is not None:
        return named
    steps = ", ".join(str(candidate.step) for candidate in listed) or "none"
    raise NotFoundError(
        f"job {job_id} has no checkpoint {str(reference)!r}; use `best`, `latest` or a step: {steps}",
        code="checkpoint_not_found",
        param="checkpoint",
    )
