"""What the check found, for people and programs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.comm_check.plan import RankGroup
from worker.comm_check.timing import Row

MAX_EVENT_ROWS = 100
"""An event stays small; the artifact has everything."""


def document(
    *,
    backend: str,
    device: str,
    groups: Sequence[RankGroup],
    rows: Sequence[Row],
    pairs: Sequence[Row],
    absent: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The artifact."""
    return {
        "object": "comm_check",
        "backend": backend,
        "device": device,
        "world_size": len(groups[0].ranks),
        "groups": {group.name: list(group.ranks) for group in groups},
        "operations": [row.plain() for row in rows],
        "pairs": [row.plain() for row in pairs],
        "not_in_backend": {name: list(operations) for name, operations in absent.items() if operations},
        "slowest_pair": slowest_pair(pairs),
    }


def event_data(found: Mapping[str, Any]) -> dict[str, Any]:
    """The artifact without what grows with the number of ranks: the world's rows, and the slowest pair."""
    world = [row for row in found["operations"] if row["group"] == "world"]
    kept = {key: value for key, value in found.items() if key not in ("operations", "pairs", "groups", "object")}
    return {**kept, "operations": world[:MAX_EVENT_ROWS]}


def slowest_pair(pairs: Sequence[Row]) -> dict[str, Any] | None:
    """The pair with the least bandwidth at the largest message."""
    largest = max((row.size_bytes for row in pairs), default=0)
    rows = [row for row in pairs if row.size_bytes == largest]
    return min(rows, key=lambda row: row.bus_bytes_per_second or 0.0).plain() if rows else None


def sentence(found: Mapping[str, Any]) -> str:
    """One line for the job's history."""
    slow, absent = found["slowest_pair"], found["not_in_backend"]
    text = f"every value is right on {len(found['groups'])} group(s) of {found['world_size']} ranks"
    if slow:
        text += f"; the slowest pair is {slow['group']} with {slow['bus_bytes_per_second'] / 1e9:.2f} GB/s"
    if absent:
        missing = sorted({operation for operations in absent.values() for operation in operations})
        text += f"; the backend {found['backend']} has no {', '.join(missing)}"
    return text
