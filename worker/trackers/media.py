"""Makes items of media from the data that trackers' clients send."""

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from trainyard.contract.base import MAX_SAFE_INT, sanitize
from trainyard.contract.stored_name import stored_name
from trainyard.contract.wire.media import MAX_BINS, MAX_CAPTION, Histogram, MediaItem, MediaType
from worker.trackers.journal import Journal


def media_item(key: str, step: int | None, type_: MediaType, time: datetime, **fields: Any) -> MediaItem | None:
    """Return an item; None if the service would refuse it, for example because of a negative step or too long a path.

    Args:
        step: The step that the program gave; None: it gave none.
        fields: The fields of `MediaItem`. A caption is cut, and sizes that are not positive integers are left out.
    """
    caption = fields.pop("caption", None)
    sizes = {name: fields.pop(name, None) for name in ("width", "height")}
    known = {name: size for name, size in sizes.items() if type(size) is int and 0 < size <= MAX_SAFE_INT}
    try:
        return MediaItem(
            key=stored_name(key),
            step=step or 0,
            type=type_,
            time=time,
            caption=str(sanitize(caption))[:MAX_CAPTION] if isinstance(caption, str) and caption else None,
            **known,
            **fields,
        )
    except ValidationError:
        return None


def state_step(journal: Journal, execution: int, key: str, step: int | None) -> None:
    """State once that a medium is left out whose step cannot be stored."""
    if step is not None and not 0 <= step <= MAX_SAFE_INT:
        message = f"the step of {key[:80]!r} is no whole number from 0 to 2**53; such media are files without a step"
        journal.state_once(execution, "media_step", message)


def histogram(edges: object, counts: object) -> Histogram | None:
    """Return a histogram; None if the values do not form any. Above `MAX_BINS` bins, adjacent bins are joined."""
    bins, values = _numbers(edges), _numbers(counts)
    if not values or len(bins) != len(values) + 1 or any(one > other for one, other in pairwise(bins)):
        return None
    width = math.ceil(len(values) / MAX_BINS)
    joined = tuple(sum(values[start : start + width]) for start in range(0, len(values), width))
    return Histogram(bins=(*bins[:-1:width], bins[-1]), values=joined)


def _numbers(values: object) -> Sequence[float]:
    """Return a list of finite numbers; nothing for anything else."""
    if not isinstance(values, list) or not all(type(one) in (int, float) and math.isfinite(one) for one in values):
        return ()
    return [float(one) for one in values]
