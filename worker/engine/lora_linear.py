"""Adapted linear layers in 16 bits: the adapter's product is added to the base's product where that is written.

peft converts the input to fp32 and back for each adapter, and adds by kernels of their own. Modules, names and files
stay peft's. To be imported only where peft is installed.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.distributed.tensor import DTensor

from worker.engine.adapted_product import adapted_product
from worker.engine.adapter_rules import ADAPTER
from worker.engine.frozen_base import FrozenLinear, HeldDtype, converted
from worker.tasks.linear_loss import add_product_, in_16_bits


class LoraLinear(Linear):  # type: ignore[misc]
    """peft's layer, with a forward of its own in bf16 and fp16."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return W x + b + scaling B A x: (..., out_features) from `x` (..., in_features)."""
        dtype = in_16_bits(x)
        operands = None if dtype is None or args or kwargs else self._operands()
        if operands is None:
            result: torch.Tensor = super().forward(x, *args, **kwargs)
            return result
        return _lora_product(x.to(dtype), operands, self.scaling[ADAPTER])

    def _operands(self) -> "_Operands | None":
        """Return the matrices, unless peft computes more than their products, or their layers must be called."""
        base, first, second = self.base_layer, self.lora_A[ADAPTER], self.lora_B[ADAPTER]
        if self.disable_adapters or self.merged or self.active_adapters != [ADAPTER] or self.lora_variant:
            return None
        if not isinstance(self.lora_dropout[ADAPTER], nn.Identity) or second.bias is not None:
            return None
        # A sharding unit gathers its weight, and hooks run, only in a call.
        if any(map(_must_be_called, (base, first, second))):
            return None
        if type(base) is nn.Linear and not base.weight.requires_grad:
            return _Operands(first.weight, second.weight, base.weight, base.bias, base.in_features, "bf16")
        if isinstance(base, FrozenLinear):
            return _Operands(first.weight, second.weight, base.weight, base.bias, base.in_features, base.dtype)
        return None


def use_lora_linear(model: nn.Module) -> None:
    """Give the adapted linear layers of a model this forward. Names and parameters do not change."""
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = LoraLinear


def _must_be_called(layer: nn.Module) -> bool:
    return isinstance(layer.weight, DTensor) or bool(layer._forward_pre_hooks or layer._forward_hooks)


class _Operands(NamedTuple):
    first: torch.Tensor
    """A: (rank, in_features)."""
    second: torch.Tensor
    """B: (out_features, rank)."""
    weight: torch.Tensor
    """W, frozen, in the form in which it is held."""
    bias: torch.Tensor | None
    columns: int
    held: HeldDtype


def _lora_product(x: torch.Tensor, operands: _Operands, scaling: float) -> torch.Tensor:
    first, second, weight, bias, columns, held = operands
    # Converted once, and saved in that form, as autocast does; other forms are converted again in the backward.
    weight = weight.to(x.dtype) if held == "bf16" and weight.dtype == torch.float32 else weight
    bias = None if bias is None else bias.to(x.dtype)
    result: torch.Tensor = _LoraProduct.apply(x, first, second, weight, bias, columns, held, scaling)  # type: ignore[no-untyped-call]
    return result


class _LoraProduct(torch.autograd.Function):
    """W x + b + scaling B A x, with gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        columns: int,
        held: HeldDtype,
        scaling: float,
    ) -> torch.Tensor:
        flat, down, up = x.reshape(-1, x.shape[-1]), first.to(x.dtype), second.to(x.dtype)
        inner = flat @ down.t()
        result = adapted_product(flat, converted(weight, columns, held, x.dtype), bias, inner, up, scaling)
        ctx.save_for_backward(flat, inner, down, up, weight)
        ctx.columns, ctx.held, ctx.scaling = columns, held, scaling
        ctx.shape, ctx.dtypes = x.shape, (first.dtype, second.dtype)
        shaped: torch.Tensor = result.view(*x.shape[:-1], len(up))
        return shaped

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat, inner, down, up, weight = ctx.saved_tensors
        gradient = gradient.reshape(len(flat), len(up))
        of_inner = (gradient @ up).mul_(ctx.scaling)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = gradient @ converted(weight, ctx.columns, ctx.held, gradient.dtype)
            of_x = of_x.addmm_(of_inner, down).view(ctx.shape)
        of_first = _summed_product(of_inner, flat).to(ctx.dtypes[0])
        of_second = _summed_product(gradient, inner).mul_(ctx.scaling).to(ctx.dtypes[1])
        return of_x, of_first, of_second, None, None, None, None, None


def _summed_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left^T right in fp32, of values in 16 bits."""
    total = torch.empty(left.shape[1], right.shape[1], dtype=torch.float32, device=left.device)
    add_product_(total, left, right, False)
    return total
