"""Activation checkpointing: what a layer's backward needs is computed again instead of kept."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from worker.engine.strategies.units import layers

_aten = torch.ops.aten
_COSTLY = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]
"""Products and attention: nearly all of the arithmetic, and a small part of what is kept."""


def checkpoint_activations(model: nn.Module, how: Literal["selective", "full"]) -> None:
    """Make every layer keep only its input (full), or that and the results of its costly operations (selective).

    The layer's `forward` is replaced rather than the layer, so that names in checkpoints stay as they are.
    """
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _COSTLY)
    for name in layers(model):
        layer = model.get_submodule(name)
        layer.forward = _checkpointed(layer.forward, options)


def _checkpointed(inner: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    # A function, and not a `partial`: torch.compile passes over one of those and compiles nothing, without a word.
    def forward(*args: Any, **named: Any) -> Any:
        return checkpoint(inner, *args, **options, **named)

    return forward
