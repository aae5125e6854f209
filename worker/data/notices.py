"""Notices: what a user should know about the data of a run, reported as events when it starts."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Notice:
    """One event."""

    kind: str
    message: str
    level: Literal["info", "warning"] = "info"
    data: dict[str, Any] = field(default_factory=dict)


def unused_tools_notice(section: str, examples: int) -> Notice:
    """Return the notice about examples whose `tools` the chat template does not write."""
    message = (
        f"{section}: the model's chat template leaves out the `tools` of {examples} example{'s' * (examples != 1)}, so "
        "that the model does not see them; use a model whose template writes `tools`"
    )
    return Notice("tools_unused", message, "warning", {"examples": examples})
