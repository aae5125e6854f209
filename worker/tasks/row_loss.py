"""The cross entropy of each row, computed in chunks so that the logits of all tokens never exist at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from worker.tasks.cross_entropy import each_cross_entropy

Head = Callable[[torch.Tensor], torch.Tensor]


def chunked_row_losses(
    hidden: torch.Tensor, labels: torch.Tensor, head: Head, weights: Sequence[torch.Tensor], chunk: int
) -> torch.Tensor:
    """Return the cross entropy in nats, summed over the targets of each row: fp32, (batch,).

    Args:
        hidden: (batch, length, width), the input of the head.
        labels: int64, (batch, length): the next token of each position, or `IGNORED_LABEL`.
        head: Maps (tokens, width) to logits (tokens, vocabulary).
        weights: The trained parameters that the head uses.
        chunk: Tokens whose logits may exist at once.
    """
    hidden = hidden if torch.is_grad_enabled() else hidden.detach()
    losses: torch.Tensor = _ChunkedRows.apply(head, chunk, labels, hidden, *weights)  # type: ignore[no-untyped-call]
    return losses


class _ChunkedRows(torch.autograd.Function):
    """The losses, whose logits are computed again in the backward: only there it is known by which factor the loss of
    each row counts. All chunks add to the same gradient of each weight, in fp32."""

    @staticmethod
    def forward(
        ctx: Any, head: Head, chunk: int, labels: torch.Tensor, hidden: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        kind = hidden.device.type
        ctx.autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        ctx.head, ctx.chunk = head, chunk
        ctx.save_for_backward(labels, hidden, *weights)
        flat, targets = hidden.flatten(0, 1), labels.flatten()
        parts = [each_cross_entropy(head(flat[part]), targets[part]) for part in _parts(len(flat), chunk)]
        return torch.cat(parts).view(labels.shape).sum(dim=1)

    @staticmethod
    def backward(ctx: Any, factors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        labels, hidden, *weights = ctx.saved_tensors
        needs_hidden = ctx.needs_input_grad[3]
        flat, targets = hidden.flatten(0, 1), labels.flatten()
        of_tokens = factors.repeat_interleave(labels.shape[1])
        gradient = torch.empty_like(flat) if needs_hidden else None
        sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        enabled, dtype = ctx.autocast
        for part in _parts(len(flat), ctx.chunk):
            inputs = flat[part].detach().requires_grad_(needs_hidden)
            with torch.enable_grad(), torch.autocast(hidden.device.type, dtype, enabled=enabled):
                loss = (each_cross_entropy(ctx.head(inputs), targets[part]) * of_tokens[part]).sum()
            gradients = list(torch.autograd.grad(loss, [*([inputs] if needs_hidden else []), *weights]))
            if gradient is not None:
                gradient[part] = gradients.pop(0)
            for total, added in zip(sums, gradients, strict=True):
                total += added
        of_weights = (total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True))
        return None, None, None, None if gradient is None else gradient.view(hidden.shape), *of_weights


def _parts(count: int, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, count, chunk))
