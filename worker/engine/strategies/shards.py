"""Memory for the shards of a deferred model after `fully_shard`, which leaves them without any."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worker.deferred.model import Destination
from worker.deferred.recording import DeferredTensor
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
    """Replace a sharded module's tensors on the meta device, and return where their values belong.

    Args:
        tensors: The tensors by each of their names; a tied one stays tied.
        device: Where the shards are.
        buffer_device: Where buffers are, which every rank holds whole.
        rank: This rank's number among those that share the model.
        shards: The number of those ranks.
    """
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    destinations: dict[DeferredTensor, list[Destination]] = defaultdict(list)
    for name, tensor in tensors.items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        current = getattr(owner, attribute)
        if id(current) not in replaced:
            if isinstance(current, DTensor):
                rows = slice(*shard_rows(current.shape[0], rank, shards))
                new, memory = _shard(current, device, rows)
            else:
                rows = slice(None)
                new, memory = (torch.empty_like(current, device=buffer_device),) * 2
            # With the tensor before, so that its id is not used again.
            replaced[id(current)] = current, new
            destinations[tensor].append(Destination(memory, rows))
        setattr(owner, attribute, replaced[id(current)][1])
    return destinations


def _shard(parameter: DTensor, device: torch.device, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.empty((rows.stop - rows.start, *parameter.shape[1:]), dtype=parameter.dtype, device=device)
    sharded = DTensor.from_local(
        memory,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad), memory
