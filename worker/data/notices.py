"""Notices to the user about the data of a run, reported as events when it starts."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Notice:
    """One event."""

    kind: str
    message: str
    level: Literal["info", "warning"] = "info"
    data: dict[str, Any] = field(default_factory=dict)
