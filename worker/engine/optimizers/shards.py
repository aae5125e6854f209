"""Local parts of parameters, which sharded strategies hold as DTensors split along dimension 0."""

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from worker.engine.strategies.units import shard_rows


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a tensor, which share its memory; the tensor itself if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor as a matrix of its rows, which shares its memory."""
    part = local_part(tensor.detach())
    return part.view(part.shape[0], prod(part.shape[1:])) if part.ndim else part.view(1, 1)


def whole_of(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor of `part`, which is sharded like `parameter`. A collective if sharded."""
    sharded = sharded_like(part, parameter)
    return sharded.full_tensor() if isinstance(sharded, DTensor) else part


def sharded_like(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape of `parameter`, sharded like it, in which this rank has `part`."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def first_row(parameter: torch.Tensor) -> int:
    """Return the number of the first row of this rank's part of a parameter."""
    if not isinstance(parameter, DTensor):
        return 0
    dimension = _shard_dimension(parameter)
    mesh = parameter.device_mesh
    return shard_rows(parameter.shape[0], mesh.get_local_rank(dimension), mesh.size(dimension))[0]


def _shard_dimension(parameter: DTensor) -> int:
    """Return the dimension of the mesh over which a parameter is sharded."""
    (dimension,) = (index for index, placement in enumerate(parameter.placements) if isinstance(placement, Shard))
    return dimension


def part_of(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the part of `whole` that corresponds to this rank's part of `parameter`."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    replicated = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements).to_local()


def zeros_by_row(parameter: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return fp32 zeros of a shape with as many rows as `parameter`, sharded like it."""
    part = local_part(parameter)
    zeros = torch.zeros((part.shape[0], *shape[1:]), dtype=torch.float32, device=part.device)
    if not isinstance(parameter, DTensor):
        return zeros
    stride = torch.empty(tuple(shape), device="meta").stride()
    return DTensor.from_local(
        zeros,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=stride,
    )


def shard_group(parameter: torch.Tensor) -> dist.ProcessGroup | None:
    """Return the ranks that hold the parts of a parameter; None if it is not sharded."""
    if not isinstance(parameter, DTensor):
        return None
    return parameter.device_mesh.get_group(_shard_dimension(parameter))


def sum_over_shards(values: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Return the sums of tensors over the ranks of a group, in one collective."""
    if group is None or not values:
        return list(values)
    flat = torch.cat([value.flatten() for value in values])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
