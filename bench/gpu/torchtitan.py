"""torchtitan's settings for a Llama on one GPU, rebuilt with plain torch: a reference for phase `speed`.

Those of its Llama 3 presets: autocast to bf16, activation checkpointing that stores attention and every second matrix
product, a compilation of each block and of the loss, which takes all logits at once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from worker.data.examples import Tensors
from worker.engine.strategies.units import layers
from worker.tasks.base import Task

_aten = torch.ops.aten
_ATTENTION = (
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def prepare(model: nn.Module, task: Task, *, compiled: bool) -> Callable[[Tensors], torch.Tensor]:
    """Change the model in place, and return what computes the summed loss of a batch of tokens."""
    for name in layers(model):
        block = model.get_submodule(name)
        block.forward = _checkpointed(block.forward)
        if compiled:
            block.compile(fullgraph=True)
    cross_entropy = torch.compile(_cross_entropy) if compiled else _cross_entropy

    def loss_sum(batch: Tensors) -> torch.Tensor:
        tokens = batch[0].long()
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    return loss_sum


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def _checkpointed(inner: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, context_fn=_contexts)

    return forward


def _contexts() -> Any:
    products = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *args: Any, **named: Any) -> CheckpointPolicy:
        stored = operation in _ATTENTION
        if operation == _aten.mm.default:
            products[context.is_recompute] += 1
            stored = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if stored else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
