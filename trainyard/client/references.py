"""How a job may be named: its id, a part of the id, its name, or `last`."""

import re

LAST = "last"
FINE_TUNED = "ft:"
"""How the names of models begin that OpenAI's API returns."""
CHECKPOINT_MARK = ":ckpt-step-"
"""What separates such a name from the step of a checkpoint."""
SEARCH_LIMIT = 2000
"""Number of newest jobs that are searched for an abbreviated id."""
MIN_ABBREVIATION = 4
_WHOLE_ID = re.compile(r"[a-z]+_[0-9a-z]{26}", re.IGNORECASE)


def id_part(reference: str) -> str:
    """Return what names the job: of a model of OpenAI's API, `ft:<base>:<user>:<suffix>:<end of the id>`, the end."""
    if not reference.startswith(FINE_TUNED):
        return reference
    return reference.partition(CHECKPOINT_MARK)[0].rpartition(":")[2]


def is_whole_id(reference: str) -> bool:
    """Return whether it has the form of an id, so that it is neither a part of one nor a name."""
    return _WHOLE_ID.fullmatch(reference) is not None


def is_abbreviation(part: str, full_id: str) -> bool:
    """Return whether `part` is a prefix (with or without the kind) or suffix of the id, of at least four characters."""
    start, kind = part.lower(), full_id.partition("_")[0]
    return len(start) >= MIN_ABBREVIATION and (
        full_id.endswith(start) or full_id.startswith((start, f"{kind}_{start}"))
    )
