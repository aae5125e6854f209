"""The results of a check as an artifact and as an event. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.comm_check.plan import RankGroup
from worker.comm_check.timing import Measurement

MAX_EVENT_ROWS = 100
"""The most measurements in the event; the artifact has all."""


def document(
    *,
    backend: str,
    device: str,
    groups: Sequence[RankGroup],
    rows: Sequence[Measurement],
    pairs: Sequence[Measurement],
    absent: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the content of the artifact."""
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


def event_data(artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Return the artifact without the parts that grow with the number of ranks: the world's measurements remain."""
    world = [row for row in artifact["operations"] if row["group"] == "world"]
    data = {key: value for key, value in artifact.items() if key not in ("operations", "pairs", "groups", "object")}
    return {**data, "operations": world[:MAX_EVENT_ROWS]}


def slowest_pair(pairs: Sequence[Measurement]) -> dict[str, Any] | None:
    """Return the pair with the lowest bandwidth for the largest message."""
    largest = max((row.size_bytes for row in pairs), default=0)
    rows = [row for row in pairs if row.size_bytes == largest]
    return min(rows, key=lambda row: row.bus_bytes_per_second or 0.0).plain() if rows else None


def summary(artifact: Mapping[str, Any]) -> str:
    """Return the message of the event."""
    slow, absent = artifact["slowest_pair"], artifact["not_in_backend"]
    text = f"all values are correct on {len(artifact['groups'])} group(s) of {artifact['world_size']} ranks"
    if slow:
        text += f"; the slowest pair is {slow['group']} with {slow['bus_bytes_per_second'] / 1e9:.2f} GB/s"
    if absent:
        missing = sorted({operation for operations in absent.values() for operation in operations})
        text += f"; the backend {artifact['backend']} lacks {', '.join(missing)}"
    return text
