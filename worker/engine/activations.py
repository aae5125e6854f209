"""Activation checkpointing (arXiv:1604.06174): the backward recomputes activations instead of storing them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import varlen  # noqa: F401 - registers its operation
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from worker.engine.adapted_product import adapted_product
from worker.engine.host_activations import HostActivations
from worker.engine.strategies.units import layers

_CPU = torch.device("cpu")
_aten = torch.ops.aten
_STORED_OPERATIONS = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_mm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
    adapted_product,
]
"""Matrix products and attention: nearly all FLOPs, and a small part of the activation memory."""


def checkpoint_activations(
    model: nn.Module, how: Literal["selective", "full", "offload"], device: torch.device = _CPU
) -> None:
    """Make every layer store only its input on the device (full) or in host memory (offload), or also the results of
    products and attention (selective).

    The layer's `forward` is replaced instead of the layer, so that the names in checkpoints do not change.
    """
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _STORED_OPERATIONS)
    host = HostActivations(device) if how == "offload" else None
    for name in layers(model):
        layer = model.get_submodule(name)
        inner = layer.forward
        layer.forward = _checkpointed(inner, options) if host is None else _offloaded(inner, options, host)


def _checkpointed(inner: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    # A function, since torch.compile silently skips a `partial`.
    def forward(*args: Any, **named: Any) -> Any:
        return checkpoint(inner, *args, **options, **named)

    return forward


def _offloaded(inner: Callable[..., Any], options: dict[str, Any], host: HostActivations) -> Callable[..., Any]:
    def forward(*args: Any, **named: Any) -> Any:
        # Masks and positions, which all layers share, have no gradient and stay on the device. `checkpoint` saves
        # only positional arguments as tensors.
        count, moved = len(args), [key for key, value in named.items() if _has_gradient(value)]
        values = (*args, *(named.pop(key) for key in moved))
        # `run` and all objects that it refers to exist until the backward, so it refers to none of the inputs.
        run = _rebuilt_call(inner, count, moved, named)
        with host.storing(tuple(filter(_has_gradient, values))):
            return checkpoint(run, *values, **options)

    return forward


def _rebuilt_call(
    inner: Callable[..., Any], count: int, names: list[str], others: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function of positional arguments only; the arguments after the first `count` get their names back."""

    def run(*values: Any) -> Any:
        return inner(*values[:count], **others, **dict(zip(names, values[count:], strict=True)))

    return run


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
