"""The operations: their calls, their inputs, and their expected results."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from worker.comm_check.plan import Operation, RankGroup

_FACTORS = 16
"""Ranks with factors of two in a product, so that it is exact in fp32 for any number of ranks."""

_REDUCTIONS = {
    "reduce": dist.ReduceOp.SUM,
    "all_reduce_sum": dist.ReduceOp.SUM,
    "all_reduce_product": dist.ReduceOp.PRODUCT,
    "all_reduce_min": dist.ReduceOp.MIN,
    "all_reduce_max": dist.ReduceOp.MAX,
}


@dataclass(frozen=True)
class GroupMember:
    """A rank as a member of a group, and torch's handle of the group."""

    group: RankGroup
    rank: int
    """The rank in the world."""
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
        """The last rank: rank 0 is more often correct by accident."""
        return self.group.ranks[-1]


@dataclass
class Buffers:
    """The buffers of an operation: `tensor`, and in `tensor_list` a tensor for each rank of the group."""

    tensor: torch.Tensor
    tensor_list: list[torch.Tensor]


def values(rank: int, count: int, device: torch.device) -> torch.Tensor:
    """Return `1 + rank % 7 + element % 5`, which is exact in sums: fp32, shape (count,)."""
    return 1.0 + rank % 7 + torch.arange(count, device=device, dtype=torch.float32) % 5


def factors(index: int, count: int, device: torch.device) -> torch.Tensor:
    """Return factors 1 and 2 for products: fp32, shape (count,)."""
    twos = (torch.arange(count, device=device) + index) % 2 if index < _FACTORS else torch.zeros(count, device=device)
    return 1.0 + twos.float()


def buffers(operation: Operation, member: GroupMember, count: int) -> Buffers:
    """Return filled buffers for a call. Operations on chunks split the `count` elements over the ranks of the group."""
    chunk_elements = max(1, count // member.size)
    if operation == "all_reduce_product":
        return Buffers(factors(member.index, count, member.device), [])
    if operation in ("scatter", "reduce_scatter"):
        full = [values(member.rank + other, chunk_elements, member.device) for other in range(member.size)]
        return Buffers(torch.zeros(chunk_elements, device=member.device), full)
    if operation in ("gather", "all_gather"):
        tensor = values(member.rank, chunk_elements, member.device)
        return Buffers(tensor, [torch.zeros_like(tensor) for _ in range(member.size)])
    return Buffers(values(member.rank, count, member.device), [])


def call(operation: Operation, member: GroupMember, data: Buffers) -> None:
    """Run the operation once. A collective of the group."""
    group, root = member.handle, member.root
    at_root = member.rank == root
    match operation:
        case "broadcast":
            dist.broadcast(data.tensor, root, group=group)
        case "reduce":
            dist.reduce(data.tensor, root, group=group)
        case "scatter":
            dist.scatter(data.tensor, data.tensor_list if at_root else None, src=root, group=group)
        case "gather":
            dist.gather(data.tensor, data.tensor_list if at_root else None, dst=root, group=group)
        case "all_gather":
            dist.all_gather(data.tensor_list, data.tensor, group=group)
        case "reduce_scatter":
            dist.reduce_scatter(data.tensor, data.tensor_list, group=group)
        case "barrier":
            dist.barrier(group=group)
        case _:
            dist.all_reduce(data.tensor, _REDUCTIONS[operation], group=group)


def expected(operation: Operation, member: GroupMember, count: int) -> list[torch.Tensor]:
    """Return the expected results on this rank, computed without communication; empty if the rank gets none."""
    ranks, device = member.group.ranks, member.device
    chunk_elements = max(1, count // member.size)
    match operation:
        case "broadcast":
            return [values(member.root, count, device)]
        case "scatter":
            return [values(member.root + member.index, chunk_elements, device)]
        case "gather" if member.rank != member.root:
            return []
        case "gather" | "all_gather":
            return [values(rank, chunk_elements, device) for rank in ranks]
        case "reduce_scatter":
            return [torch.stack([values(rank + member.index, chunk_elements, device) for rank in ranks]).sum(0)]
        case "reduce" if member.rank != member.root:
            return []
        case "barrier":
            return []
        case "all_reduce_product":
            return [torch.stack([factors(index, count, device) for index in range(member.size)]).prod(0)]
        case "all_reduce_min":
            return [torch.stack([values(rank, count, device) for rank in ranks]).amin(0)]
        case "all_reduce_max":
            return [torch.stack([values(rank, count, device) for rank in ranks]).amax(0)]
        case _:
            return [torch.stack([values(rank, count, device) for rank in ranks]).sum(0)]


def outcome(operation: Operation, data: Buffers) -> list[torch.Tensor]:
    """Return the results of the operation."""
    return data.tensor_list if operation in ("gather", "all_gather") else [data.tensor]
