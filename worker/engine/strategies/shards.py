"""Allocation of memory for a deferred model. `fully_shard` leaves its shards on the meta device, without memory."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worker.deferred.model import Destination
from worker.deferred.recording import DeferredTensor
from worker.engine.frozen_base import encoder_of
from worker.engine.strategies.units import shard_rows


@torch.no_grad()
def allocate_shards(
    module: nn.Module,
    tensors: Mapping[str, DeferredTensor],
    *,
    device: torch.device,
    buffer_device: torch.device,
    rank: int,
    shards: int,
) -> dict[DeferredTensor, list[Destination]]:
    """Replace the meta tensors of a module by allocated tensors. Return, for each tensor, where to write its values.

    Args:
        tensors: The tensors by name. A tied tensor has several names, and stays tied.
        device: The device of the shards.
        buffer_device: The device of tensors that are not sharded, such as buffers. Every rank has all of their values.
        rank: This rank's number among the ranks that share the model.
        shards: The number of ranks that share the model.
    """
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    destinations: dict[DeferredTensor, list[Destination]] = defaultdict(list)
    for name, tensor in tensors.items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        current = getattr(owner, attribute)
        if id(current) not in replaced:
            if isinstance(current, DTensor):
                shard = torch.empty_like(current, device=device)
                assert isinstance(shard, DTensor)
                memory = shard.to_local()
                new: torch.Tensor = nn.Parameter(shard, requires_grad=current.requires_grad)
                rows = slice(*shard_rows(current.shape[0], rank, shards))
            else:
                new = memory = torch.empty_like(current, device=buffer_device)
                if isinstance(current, nn.Parameter):
                    new = nn.Parameter(memory, requires_grad=current.requires_grad)
                rows = slice(0, len(current)) if current.ndim else slice(None)
            # The reference to the old tensor prevents Python from reusing its id.
            replaced[id(current)] = current, new
            encode = encoder_of(owner) if attribute == "weight" else None
            destinations[tensor].append(Destination(memory, rows, encode))
        setattr(owner, attribute, replaced[id(current)][1])
    return destinations


def allocate_whole(
    module: nn.Module, tensors: Mapping[str, DeferredTensor], device: torch.device
) -> dict[DeferredTensor, list[Destination]]:
    """Call `allocate_shards` for a module that is not sharded."""
    return allocate_shards(module, tensors, device=device, buffer_device=device, rank=0, shards=1)
