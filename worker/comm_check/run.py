"""The communication check: correctness first, then timing. The results are an artifact and an event."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from trainyard.contract.layout import RunLayout, write_atomic
from trainyard.contract.wire.reports import Progress
from worker.comm_check.correctness import check_operations, check_pairs
from worker.comm_check.operations import GroupMember
from worker.comm_check.plan import (
    OPERATIONS,
    SIZES,
    Operation,
    Pair,
    RankGroup,
    groups_of,
    rounds_of,
    timed_rounds_of,
)
from worker.comm_check.timing import Measurement, time_operation, time_pairs
from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)

ARTIFACT = "comm_check.json"
_MAX_EVENT_ROWS = 100
"""The most measurements in the event; the artifact has all."""


class CommCheck:
    """A rank's part of the check."""

    def __init__(self, ranks: Ranks, backend: str, reporter: Reporter, stop: StopSignal) -> None:
        self._ranks = ranks
        self._backend = backend
        self._reporter = reporter
        self._stop = stop
        self._groups = groups_of(ranks.world)
        self._rounds = timed_rounds_of(ranks.world)
        self._sizes = SIZES[ranks.device.type]
        self._members = {group.name: self._join(group) for group in self._groups}
        self._absent: dict[str, set[Operation]] = {}
        self._rows: list[Measurement] = []
        self._pair_rows: list[Measurement] = []
        self.step = 0
        self.total_steps = 1 + 2 * len(self._groups) + len(self._rounds)

    def run(self, run: RunLayout) -> bool:
        """Run the check and write the artifact; return False if the ranks agreed to stop first.

        Raises:
            TrainingError: On all ranks, at the first wrong value.
        """
        for stage in self._stages():
            if self._ranks.any(self._stop.requested):
                return False
            stage()
            self.step += 1
            self._reporter.points(self.step, {}, Progress(step=self.step, total_steps=self.total_steps))
        self._write_report(run)
        return True

    def _stages(self) -> list[Callable[[], None]]:
        return [
            partial(check_pairs, self._ranks, rounds_of(self._ranks.world)),
            *(partial(self._check, group) for group in self._groups),
            *(partial(self._time_pairs, pairs) for pairs in self._rounds),
            *(partial(self._time, group) for group in self._groups),
        ]

    def _join(self, group: RankGroup) -> GroupMember | None:
        """Create the group and return this rank's membership, if any. Every rank must call it, member or not."""
        whole = len(group.ranks) == self._ranks.world
        handle = None if whole else dist.new_group(list(group.ranks))
        if self._ranks.rank not in group.ranks:
            return None
        return GroupMember(group, self._ranks.rank, self._ranks.device, handle)

    def _check(self, group: RankGroup) -> None:
        self._absent[group.name] = check_operations(self._ranks, self._members[group.name], group.name)
        self._log(f"{group.name}: all values are correct")

    def _time_pairs(self, pairs: list[Pair]) -> None:
        for size in (self._sizes[0], self._sizes[-1]):
            self._pair_rows += time_pairs(self._ranks, pairs, size)

    def _time(self, group: RankGroup) -> None:
        member = self._members[group.name]
        for operation in OPERATIONS:
            if operation in self._absent[group.name]:
                continue
            for size in self._sizes[:1] if operation == "barrier" else self._sizes:
                row = time_operation(self._ranks, operation, group.name, len(group.ranks), member, size)
                self._rows.append(row)
                rate = f"{row.bus_bytes_per_second / 1e9:8.3f} GB/s" if row.bus_bytes_per_second else ""
                self._log(f"{group.name:<12}{operation:<20}{row.size_bytes:>10} B{row.seconds * 1e6:>12.1f} us {rate}")

    def _log(self, text: str) -> None:
        if self._ranks.is_rank_0:
            log.info("%s", text)

    def _write_report(self, run: RunLayout) -> None:
        artifact = _document(
            backend=self._backend,
            device=self._ranks.device.type,
            groups=self._groups,
            rows=self._rows,
            pairs=self._pair_rows,
            absent={name: sorted(operations) for name, operations in self._absent.items()},
        )
        if self._ranks.is_rank_0:
            write_atomic(run.artifacts / ARTIFACT, json.dumps(artifact, indent=1) + "\n")
            self._reporter.event("comm_check", _summary(artifact), data=_event_data(artifact))


def _document(
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
        "slowest_pair": _slowest_pair(pairs),
    }


def _event_data(artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Return the artifact without the parts that grow with the number of ranks: the world's measurements remain."""
    world = [row for row in artifact["operations"] if row["group"] == "world"]
    data = {key: value for key, value in artifact.items() if key not in ("operations", "pairs", "groups", "object")}
    return {**data, "operations": world[:_MAX_EVENT_ROWS]}


def _slowest_pair(pairs: Sequence[Measurement]) -> dict[str, Any] | None:
    """Return the pair with the lowest bandwidth for the largest message."""
    largest = max((row.size_bytes for row in pairs), default=0)
    rows = [row for row in pairs if row.size_bytes == largest]
    return min(rows, key=lambda row: row.bus_bytes_per_second or 0.0).plain() if rows else None


def _summary(artifact: Mapping[str, Any]) -> str:
    """Return the message of the event."""
    slow, absent = artifact["slowest_pair"], artifact["not_in_backend"]
    text = f"all values are correct on {len(artifact['groups'])} group(s) of {artifact['world_size']} ranks"
    if slow:
        text += f"; the slowest pair is {slow['group']} with {slow['bus_bytes_per_second'] / 1e9:.2f} GB/s"
    if absent:
        missing = sorted({operation for operations in absent.values() for operation in operations})
        text += f"; the backend {artifact['backend']} lacks {', '.join(missing)}"
    return text
