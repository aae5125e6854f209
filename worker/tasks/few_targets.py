"""Leaves positions without a target out before the head: only an answer's tokens need logits."""

from typing import Any

import torch

from worker.data.examples import IGNORED_LABEL

MULTIPLE = 128
"""Matrix products are fastest at multiples of this."""


def at_targets(hidden: torch.Tensor, labels: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hidden states and labels of all targets in their order, and of as many other positions as make their
    number a multiple of `MULTIPLE`: (1, n, width) and (1, n). No value is read from the device.

    Args:
        hidden: (batch, length, width).
        labels: int64, (batch, length): a target, or `IGNORED_LABEL`.
        most: There are at most so many targets.
    """
    count = -(-most // MULTIPLE) * MULTIPLE
    if count >= labels.numel():
        return hidden, labels
    flat = labels.flatten()
    index = (flat == IGNORED_LABEL).to(torch.int8).argsort(stable=True)[:count]
    rows: torch.Tensor = _Rows.apply(hidden.flatten(0, 1), index)  # type: ignore[no-untyped-call]
    return rows[None], flat[index][None]


class _Rows(torch.autograd.Function):
    """Some rows, each once: their gradients are copied, where torch's own functions would add them to zeros."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(values)
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.rows, gradient.shape[1]).index_copy_(0, index, gradient), None
