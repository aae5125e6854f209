"""`param_dtype: bf16`: trained parameters in bf16, each with the other half of its exact fp32 value.

The model computes with the parameter, which is the exact value rounded to the nearest. Updates, averages, checkpoints
and exports use the exact value. Both halves together take 4 bytes for each element, like a parameter in fp32 alone.
"""

from collections import defaultdict
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worker.core.float_halves import join, split
from worker.engine.optimizers.shards import local_part, sharded_like

_ATTRIBUTE = "low_half"


def split_parameters(module: nn.Module, gradients: Literal["fp32", "bf16"], *, round_frozen: bool = False) -> None:
    """Replace every trained fp32 parameter by a bf16 parameter with a lower half. Tied parameters stay tied.

    To be called before DistributedDataParallel wraps the module, and after `fully_shard` has.

    Args:
        gradients: The type in which the gradients of micro-batches are added.
        round_frozen: Replace frozen fp32 parameters by bf16 parameters, too: some operations refuse a mixture.
    """
    uses: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.dtype == torch.float32 and (parameter.requires_grad or round_frozen):
                uses[parameter].append((owner, name))
    while uses:
        former, owners = uses.popitem()
        parameter = _halved(former) if former.requires_grad else _rounded(former)
        if gradients == "fp32" and parameter.requires_grad:
            _store_gradient_in_fp32(parameter)
        for owner, name in owners:
            setattr(owner, name, parameter)
        if isinstance(former, DTensor):
            # `fully_shard` refers to it until the first forward.
            former.to_local().untyped_storage().resize_(0)


@torch.no_grad()
def _halved(parameter: nn.Parameter) -> nn.Parameter:
    # Halves are written and updated in the order of rows, which `channels_last` and transposed weights do not have.
    rows = torch.contiguous_format
    high = nn.Parameter(torch.empty_like(parameter, dtype=torch.bfloat16, memory_format=rows))
    setattr(high, _ATTRIBUTE, torch.empty_like(parameter, dtype=torch.int16, requires_grad=False, memory_format=rows))
    set_exact_value(high, parameter)
    return high


def _rounded(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)


def _store_gradient_in_fp32(parameter: nn.Parameter) -> None:
    if not isinstance(parameter, DTensor):
        # Autograd adds the gradients of micro-batches in this type.
        parameter.grad_dtype = torch.float32
        return
    # `fully_shard` stores a reduced gradient in the parameter's type, and adds further gradients to it in place.
    parameter.grad_dtype = None
    parameter.register_post_accumulate_grad_hook(_convert_gradient)  # type: ignore[no-untyped-call]


def _convert_gradient(parameter: torch.Tensor) -> None:
    if parameter.grad is not None and parameter.grad.dtype != torch.float32:
        parameter.grad = parameter.grad.float()


def low_half(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the lower half of a parameter's exact value, sharded like the parameter: int16; None if it has none."""
    return cast("torch.Tensor | None", getattr(parameter, _ATTRIBUTE, None))


def low_halves(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the lower halves by each name of their parameters."""
    halves = ((name, low_half(parameter)) for name, parameter in module.named_parameters(remove_duplicate=False))
    return {name: half for name, half in halves if half is not None}


@torch.no_grad()
def exact_value(parameter: torch.Tensor) -> torch.Tensor:
    """Return the exact value of a parameter: fp32, sharded like the parameter; a copy if it has a lower half."""
    low = low_half(parameter)
    return parameter.detach() if low is None else joined(parameter.detach(), low)


@torch.no_grad()
def set_exact_value(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Set the value of a parameter to fp32 values of its shape, sharded like the parameter."""
    low = low_half(parameter)
    if low is None:
        local_part(parameter).copy_(local_part(values))
        return
    split(local_part(values).clone().contiguous(), local_part(parameter.detach()), local_part(low))


def joined(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return the values of two halves, which may be sharded."""
    return sharded_like(join(local_part(high), local_part(low)), high)
