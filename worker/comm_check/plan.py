"""The groups of ranks, the operations and the message sizes of a check. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Operation = Literal[
    "broadcast",
    "reduce",
    "all_reduce_sum",
    "all_reduce_product",
    "all_reduce_min",
    "all_reduce_max",
    "scatter",
    "gather",
    "all_gather",
    "reduce_scatter",
    "barrier",
]

OPERATIONS: tuple[Operation, ...] = (
    *("broadcast", "reduce", "all_reduce_sum", "all_reduce_product", "all_reduce_min", "all_reduce_max"),
    *("scatter", "gather", "all_gather", "reduce_scatter", "barrier"),
)

KIB, MIB = 1024, 1024 * 1024
SIZES = {
    "cpu": (KIB, 64 * KIB, MIB, 16 * MIB),
    "cuda": (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB),
}
"""Message sizes in bytes, by device type."""


MAX_RANKS_ALONE = 16
"""The largest number of ranks for which each pair is timed alone."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class RankGroup:
    """A named group of ranks."""

    name: str
    ranks: tuple[int, ...]


def groups_of(world: int) -> list[RankGroup]:
    """Return the world, its halves, and its even and odd ranks, without duplicates and groups of a single rank."""
    half = world // 2
    candidates = [
        RankGroup("world", tuple(range(world))),
        RankGroup("lower half", tuple(range(half))),
        RankGroup("upper half", tuple(range(half, world))),
        RankGroup("even ranks", tuple(range(0, world, 2))),
        RankGroup("odd ranks", tuple(range(1, world, 2))),
    ]
    groups: dict[tuple[int, ...], RankGroup] = {}
    for group in candidates:
        if len(group.ranks) > 1:
            groups.setdefault(group.ranks, group)
    return list(groups.values())


def rounds_of(world: int) -> list[list[Pair]]:
    """Return every pair of ranks once, the lower first, in rounds of disjoint pairs (round-robin tournament)."""
    players = [*range(world), *([-1] if world % 2 else [])]
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append(sorted((min(pair), max(pair)) for pair in pairs if -1 not in pair))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def timed_rounds_of(world: int) -> list[list[Pair]]:
    """Return rounds of a single pair for few ranks. For many ranks this would take hours: return `rounds_of`."""
    rounds = rounds_of(world)
    return (
        rounds if world > MAX_RANKS_ALONE else [[pair] for pair in sorted(pair for pairs in rounds for pair in pairs)]
    )


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor from bytes per second to bus bandwidth, which does not depend on the number of ranks and can be
    compared with the hardware's (nccl-tests, doc/PERFORMANCE.md). Bytes count the whole message: all received bytes for
    all_gather and gather, all sent bytes for reduce_scatter and scatter."""
    if operation.startswith("all_reduce"):
        return 2.0 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def partner(rank: int, pairs: Sequence[Pair]) -> int | None:
    """Return the other rank of this rank's pair, or None if the rank is in no pair."""
    return next((pair[1] if rank == pair[0] else pair[0] for pair in pairs if rank in pair), None)
