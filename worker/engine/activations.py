"""Activation checkpointing (arXiv:1604.06174): the backward recomputes activations instead of storing them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import varlen  # noqa: F401 - registers its operation
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from worker.engine.strategies.units import layers

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
]
"""Matrix products and attention: nearly all FLOPs, and a small part of the activation memory."""


def checkpoint_activations(model: nn.Module, how: Literal["selective", "full"]) -> None:
    """Make every layer store only its input (full), or also the results of products and attention (selective).

    The layer's `forward` is replaced instead of the layer, so that the names in checkpoints do not change.
    """
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _STORED_OPERATIONS)
    for name in layers(model):
        layer = model.get_submodule(name)
        layer.forward = _checkpointed(layer.forward, options)


def _checkpointed(inner: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    # A function, since torch.compile silently skips a `partial`.
    def forward(*args: Any, **named: Any) -> Any:
        return checkpoint(inner, *args, **options, **named)

    return forward
