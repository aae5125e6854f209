"""How each operation is called, on which values, and what must come of it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from worker.comm_check.plan import Operation, RankGroup

_FACTORS = 16
"""Ranks that take part in a product with a factor of two: exact in fp32 however many there are."""

_REDUCTIONS = {
    "reduce": dist.ReduceOp.SUM,
    "all_reduce_sum": dist.ReduceOp.SUM,
    "all_reduce_product": dist.ReduceOp.PRODUCT,
    "all_reduce_min": dist.ReduceOp.MIN,
    "all_reduce_max": dist.ReduceOp.MAX,
}


@dataclass(frozen=True)
class Place:
    """A rank in a group, and what the group is to torch."""

    group: RankGroup
    rank: int
    """In the world."""
    device: torch.device
    handle: dist.ProcessGroup | None

    @property
    def index(self) -> int:
        return self.group.ranks.index(self.rank)

    @property
    def size(self) -> int:
        return len(self.group.ranks)

    @property
    def root(self) -> int:
        """The last one: rank 0 is right by accident more often."""
        return self.group.ranks[-1]


@dataclass
class Buffers:
    """What an operation reads and writes: one piece of a rank's own, and one a rank of the group."""

    own: torch.Tensor
    pieces: list[torch.Tensor]


def values(rank: int, count: int, device: torch.device) -> torch.Tensor:
    """Small whole numbers that tell rank and place: `1 + rank % 7 + place % 5`, exact in every sum."""
    return 1.0 + rank % 7 + torch.arange(count, device=device, dtype=torch.float32) % 5


def factors(index: int, count: int, device: torch.device) -> torch.Tensor:
    """Ones and twos, for products."""
    twos = (torch.arange(count, device=device) + index) % 2 if index < _FACTORS else torch.zeros(count, device=device)
    return 1.0 + twos.float()


def buffers(operation: Operation, place: Place, count: int) -> Buffers:
    """Filled for a call. Operations on pieces split the `count` elements over the ranks of the group."""
    pieces = max(1, count // place.size)
    if operation == "all_reduce_product":
        return Buffers(factors(place.index, count, place.device), [])
    if operation in ("scatter", "reduce_scatter"):
        full = [values(place.rank + other, pieces, place.device) for other in range(place.size)]
        return Buffers(torch.zeros(pieces, device=place.device), full)
    if operation in ("gather", "all_gather"):
        own = values(place.rank, pieces, place.device)
        return Buffers(own, [torch.zeros_like(own) for _ in range(place.size)])
    return Buffers(values(place.rank, count, place.device), [])


def call(operation: Operation, place: Place, data: Buffers) -> None:
    """The operation, once. A collective of the group."""
    group, root = place.handle, place.root
    at_root = place.rank == root
    match operation:
        case "broadcast":
            dist.broadcast(data.own, root, group=group)
        case "reduce":
            dist.reduce(data.own, root, group=group)
        case "scatter":
            dist.scatter(data.own, data.pieces if at_root else None, src=root, group=group)
        case "gather":
            dist.gather(data.own, data.pieces if at_root else None, dst=root, group=group)
        case "all_gather":
            dist.all_gather(data.pieces, data.own, group=group)
        case "reduce_scatter":
            dist.reduce_scatter(data.own, data.pieces, group=group)
        case "barrier":
            dist.barrier(group=group)
        case _:
            dist.all_reduce(data.own, _REDUCTIONS[operation], group=group)


def expected(operation: Operation, place: Place, count: int) -> list[torch.Tensor]:
    """What must be in the buffers afterwards on this rank, made without communication; nothing where nothing must."""
    ranks, device = place.group.ranks, place.device
    pieces = max(1, count // place.size)
    match operation:
        case "broadcast":
            return [values(place.root, count, device)]
        case "scatter":
            return [values(place.root + place.index, pieces, device)]
        case "gather" if place.rank != place.root:
            return []
        case "gather" | "all_gather":
            return [values(rank, pieces, device) for rank in ranks]
        case "reduce_scatter":
            return [torch.stack([values(rank + place.index, pieces, device) for rank in ranks]).sum(0)]
        case "reduce" if place.rank != place.root:
            return []
        case "barrier":
            return []
        case "all_reduce_product":
            return [torch.stack([factors(index, count, device) for index in range(place.size)]).prod(0)]
        case "all_reduce_min":
            return [torch.stack([values(rank, count, device) for rank in ranks]).amin(0)]
        case "all_reduce_max":
            return [torch.stack([values(rank, count, device) for rank in ranks]).amax(0)]
        case _:
            return [torch.stack([values(rank, count, device) for rank in ranks]).sum(0)]


def outcome(operation: Operation, data: Buffers) -> list[torch.Tensor]:
    """What the operation has left in the buffers."""
    return data.pieces if operation in ("gather", "all_gather") else [data.own]
