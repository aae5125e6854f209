"""Ids and names as parts of a path; what cannot be one names nothing, and the service need not be asked."""

import re

from trainyard.client.errors import NotFoundError

_ANY = r"[A-Za-z0-9_-]{1,128}"
_SHAPES = {
    "sweep": r"swp_[0-9a-z]{26}",
    "webhook": r"whk_[0-9a-z]{26}",
    "checkpoint": r"ckpt_[0-9a-z]{26}",
    "token": r"[0-9a-f]{8,16}",
}
"""The service tells of a wrong shape what its pattern is, which helps nobody who mistyped."""


def segment(text: str, kind: str) -> str:
    """The id or name of one `kind`.

    Raises:
        NotFoundError: nothing can have it.
    """
    if not re.fullmatch(_SHAPES.get(kind, _ANY), text):
        raise NotFoundError(f"there is no {kind} {text!r}", code=f"{kind}_not_found")
    return text
