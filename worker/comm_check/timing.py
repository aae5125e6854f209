"""Times each operation and pair by message size, on the slowest rank."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from worker.comm_check.operations import GroupMember, buffers, call
from worker.comm_check.plan import Operation, Pair, bus_factor, partner
from worker.core.distributed import Ranks

_FLOAT_BYTES = 4
_BUDGET_SECONDS = 0.06
"""Time for repeated calls. The duration of a first call determines their number."""
_MAX_CALLS = 50


@dataclass(frozen=True)
class Measurement:
    """A measurement."""

    operation: str
    group: str
    ranks: int
    size_bytes: int
    seconds: float
    """Mean seconds of one call on the slowest rank."""
    bus_bytes_per_second: float | None
    """The bus bandwidth; None for a barrier, which transfers no data."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def time_operation(
    ranks: Ranks, operation: Operation, name: str, members: int, member: GroupMember | None, size: int
) -> Measurement:
    """Time an operation for a message size in a group while the other ranks wait. A collective of the world."""
    data = buffers(operation, member, size // _FLOAT_BYTES) if member else None

    def once() -> None:
        if member and data:
            call(operation, member, data)

    seconds = max(_seconds(ranks, once))
    moved = None if operation == "barrier" else size / seconds * bus_factor(operation, members)
    return Measurement(operation, name, members, 0 if operation == "barrier" else size, seconds, moved)


def time_pairs(ranks: Ranks, pairs: Sequence[Pair], size: int) -> list[Measurement]:
    """Time a message within each pair as half a round trip, all pairs at once. A collective of the world."""
    other = partner(ranks.rank, pairs)
    message = torch.ones(size // _FLOAT_BYTES, device=ranks.device) if other is not None else None

    def round_trip() -> None:
        if message is None or other is None:
            return
        if ranks.rank < other:
            dist.send(message, other)
            dist.recv(message, other)
        else:
            dist.recv(message, other)
            dist.send(message, other)

    by_rank = _seconds(ranks, round_trip)
    rows = []
    for one, two in pairs:
        seconds = max(by_rank[one], by_rank[two]) / 2
        rows.append(Measurement("send_recv", f"{one}-{two}", 2, size, seconds, size / seconds))
    return rows


def _seconds(ranks: Ranks, once: Callable[[], None]) -> list[float]:
    """Return the seconds of one call on each rank: the mean over the budget, after two warm-up calls."""
    once()
    ranks.barrier()
    first = max(row[0] for row in ranks.gather([_timed(ranks, once, 1)]))
    times = max(1, min(_MAX_CALLS, int(_BUDGET_SECONDS / max(first, 1e-6))))
    ranks.barrier()
    return [row[0] / times for row in ranks.gather([_timed(ranks, once, times)])]


def _timed(ranks: Ranks, once: Callable[[], None], times: int) -> float:
    _wait_for_device(ranks)
    started = time.perf_counter()
    for _ in range(times):
        once()
    _wait_for_device(ranks)
    return time.perf_counter() - started


def _wait_for_device(ranks: Ranks) -> None:
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
