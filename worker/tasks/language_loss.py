"""Cross entropy of next tokens, computed in chunks so that the logits of all tokens never exist at once."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from worker.tasks import linear_loss
from worker.tasks.cross_entropy import PLAIN, FewTargets, PerRow, Terms, cross_entropy_of, summed_terms
from worker.tasks.few_targets import at_targets
from worker.tasks.row_loss import chunked_row_losses

MAX_LOGITS = 2**26
"""Logits of a chunk: 256 MiB in fp32, which is 512 tokens of a vocabulary of 131072. A chunk of a trained head may have
more; see `tokens_of_chunk`."""
LINEAR_LOGITS = 8
"""A chunk has this many times as many logits where the head is one matrix product in 16 bits: 2 bytes for each instead
of 14."""

Head = Callable[[torch.Tensor], torch.Tensor]
LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps hidden states (tokens, width) and their labels (tokens,) to the summed loss, or a vector that begins with it."""


class LogitRule(NamedTuple):
    """The function from the output of a model's head to its logits."""

    scale: float = 1.0
    cap: float | None = None
    """Logits x become cap tanh(x / cap), after they are scaled (arXiv:2408.00118)."""

    def after(self, head: Head) -> Head:
        """Return the head followed by this."""
        return head if self == UNCHANGED else partial(_scale_and_cap, head, self)


UNCHANGED = LogitRule()


def at_positions(values: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return the values at one position of each row: (batch, ...) from (batch, length, ...)."""
    return values[torch.arange(len(values), device=values.device), last]


def _scale_and_cap(head: Head, rule: LogitRule, hidden: torch.Tensor) -> torch.Tensor:
    logits = head(hidden)
    if rule.scale != 1.0:
        logits = logits * rule.scale
    return logits if rule.cap is None else torch.tanh(logits / rule.cap) * rule.cap


def summed_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    vocabulary: int,
    weights: Iterable[torch.Tensor],
    terms: Terms = PLAIN,
    *,
    max_logits: int = MAX_LOGITS,
) -> torch.Tensor:
    """Return the cross entropy in nats with further terms, summed over the targets: fp32, shape ().

    `Counted` adds the number of hits: fp32, (2,). `PER_ROW` requests the sum of each row: fp32, (batch,). With
    `FewTargets` the head computes no other positions, in 16 bits.

    More than `max_logits` logits are computed in chunks. The head's weights must not be sharded here, so this must run
    inside the forward of the module that owns them.

    Args:
        hidden: (batch, length, width), the input of the head.
        labels: int64, (batch, length): the next token of each position, or `IGNORED_LABEL`.
        head: Maps (tokens, width) to logits (tokens, vocabulary).
        weights: All parameters that the head uses.
    """
    if isinstance(terms, FewTargets):
        # In fp32 the text of losses stays.
        if linear_loss.in_16_bits(hidden):
            hidden, labels = at_targets(hidden, labels, terms.most)
        terms = terms.terms
    least = max(1, max_logits // vocabulary)
    if labels.numel() <= least:
        return cross_entropy_of(head(hidden), labels, terms)
    trained = [weight for weight in weights if weight.requires_grad and torch.is_grad_enabled()]
    if isinstance(terms, PerRow):
        return chunked_row_losses(hidden, labels, head, trained, least)
    product = linear_loss.linear_head(head)
    dtype = product and linear_loss.compute_dtype(hidden, product)
    if product and dtype:
        chunk = linear_loss.tokens_of_chunk(vocabulary, LINEAR_LOGITS * max_logits)
        flat = hidden.flatten(0, 1), labels.flatten()
        return linear_loss.linear_loss(*flat, product, dtype, terms, chunk=chunk)
    chunk = tokens_of_chunk(hidden.shape[-1], least) if trained else least
    hidden, labels = hidden.flatten(0, 1), labels.flatten()
    hidden = hidden if torch.is_grad_enabled() else hidden.detach()

    def loss_of(part: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return summed_terms(head(part), targets, terms)

    loss: torch.Tensor = _ChunkedLoss.apply(loss_of, chunk, labels, hidden, *trained)  # type: ignore[no-untyped-call]
    return loss


def tokens_of_chunk(width: int, least: int) -> int:
    """Return the tokens of a chunk whose head is trained.

    Each chunk adds to the gradient of the head's weight. The chunk's own, in 2-byte values and in fp32, takes 6 bytes
    for each element of the weight, and its logits take up to 14 bytes each. The logits of 6/14 of `width` tokens
    therefore need no more memory, and fewer tokens would only add more often. Matrix products are fastest at multiples
    of 128.
    """
    return max(least, width * 6 // 14 // 128 * 128)


def head_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    vocabulary: int,
    weights: Iterable[torch.Tensor],
    terms: Terms = PLAIN,
    rule: LogitRule = UNCHANGED,
) -> torch.Tensor:
    """Return the same. A head that is a sharding unit computes the loss itself, in a single call."""
    own: Callable[..., torch.Tensor] | None = getattr(head, "summed_loss", None)
    if own:
        return own(hidden, labels, terms, rule)
    return summed_loss(hidden, labels, rule.after(head), vocabulary, weights, terms)


def summed_loss_of(
    head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor, terms: Terms = PLAIN, rule: LogitRule = UNCHANGED
) -> torch.Tensor:
    """Return the same by a head whose weight has shape (vocabulary, width) and is not sharded now."""
    weight = head.weight
    assert isinstance(weight, torch.Tensor)
    return summed_loss(hidden, labels, rule.after(head.forward), weight.shape[0], head.parameters(), terms)


class _ChunkedLoss(torch.autograd.Function):
    """The loss, whose gradients are computed in the forward, chunk by chunk, and scaled in the backward.

    The backward only brings the factor of the sum, so that no chunk's logits are saved or computed again (as in Liger
    Kernel, arXiv:2410.10989). All chunks add to the same gradient of each weight, in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, loss_of: LossOf, chunk: int, labels: torch.Tensor, hidden: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        *_, needs_hidden = ctx.needs_input_grad[:4]
        total: torch.Tensor | None = None
        gradient = torch.empty_like(hidden) if needs_hidden else None
        sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        for start in range(0, len(hidden), chunk):
            part, targets = hidden[start : start + chunk], labels[start : start + chunk]
            loss, of_part, of_weights = _chunk_gradients(loss_of, part, targets, weights, needs_hidden=needs_hidden)
            total = loss if total is None else total + loss
            if gradient is not None and of_part is not None:
                gradient[start : start + chunk] = of_part
            for total_gradient in sums:
                # Otherwise these and the next chunk's gradients would exist at the same time.
                total_gradient += of_weights.pop(0)
        # Not by `save_for_backward`: the backward scales them in place.
        ctx.gradients = gradient, sums, [weight.dtype for weight in weights]
        assert total is not None, "there is a chunk"
        return total

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, sums, dtypes = ctx.gradients
        del ctx.gradients
        factor = _loss_in(factor)
        scaled = None if gradient is None else gradient.mul_(factor)
        return (
            None,
            None,
            None,
            scaled,
            *(total.mul_(factor).to(dtype) for total, dtype in zip(sums, dtypes, strict=True)),
        )


def _chunk_gradients(
    loss_of: LossOf, hidden: torch.Tensor, labels: torch.Tensor, weights: Sequence[torch.Tensor], *, needs_hidden: bool
) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
    """Return the values of a chunk, and the gradients of its loss by the hidden states and by the weights."""
    inputs = hidden.detach().requires_grad_(needs_hidden)
    with torch.enable_grad():
        values = loss_of(inputs, labels)
        loss = _loss_in(values)
    sources = [*([inputs] if needs_hidden else []), *weights]
    gradients = list(torch.autograd.grad(loss, sources)) if sources else []
    of_hidden = gradients.pop(0) if needs_hidden else None
    return values.detach(), of_hidden, gradients


def _loss_in(values: torch.Tensor) -> torch.Tensor:
    """Return the loss, which is the first value of a vector."""
    return values[0] if values.ndim else values
