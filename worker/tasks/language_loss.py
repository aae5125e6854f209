"""Cross entropy of next tokens, computed in chunks so that the logits of all tokens never exist at once."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainyard.contract.spec.optimization import Loss
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy

MAX_LOGITS = 2**26
"""Logits of a chunk: 256 MiB in fp32, which is 512 tokens of a vocabulary of 131072."""

Head = Callable[[torch.Tensor], torch.Tensor]


def summed_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    vocabulary: int,
    terms: Loss = PLAIN,
    *,
    max_logits: int = MAX_LOGITS,
) -> torch.Tensor:
    """Return the cross entropy in nats with further terms, summed over the targets: fp32, shape ().

    More than `max_logits` logits are computed in chunks, and again in the backward. The head's weights must not be
    sharded here, so this must run inside the forward of the module that owns them.

    Args:
        hidden: (batch, length, width), the input of the head.
        labels: int64, (batch, length): the next token of each position, or `IGNORED_LABEL`.
        head: Maps (tokens, width) to logits (tokens, vocabulary).
    """
    hidden, labels = hidden.flatten(0, 1), labels.flatten()
    chunk = max(1, max_logits // vocabulary)
    if len(hidden) <= chunk:
        return summed_cross_entropy(head(hidden), labels, terms)
    total = torch.zeros((), device=hidden.device)
    for part, targets in zip(torch.split(hidden, chunk), torch.split(labels, chunk), strict=True):
        loss = checkpoint(_chunk_loss, part, targets, head, terms, use_reentrant=False)
        assert isinstance(loss, torch.Tensor)
        total = total + loss
    return total


def head_loss(
    hidden: torch.Tensor, labels: torch.Tensor, head: Head, vocabulary: int, terms: Loss = PLAIN
) -> torch.Tensor:
    """Return the same. A head that is a sharding unit computes the loss itself, in one call."""
    own: Callable[[torch.Tensor, torch.Tensor, Loss], torch.Tensor] | None = getattr(head, "summed_loss", None)
    return summed_loss(hidden, labels, head, vocabulary, terms) if own is None else own(hidden, labels, terms)


def summed_loss_of(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor, terms: Loss = PLAIN) -> torch.Tensor:
    """Return the same by a head whose weight has shape (vocabulary, width) and is not sharded now."""
    weight = head.weight
    assert isinstance(weight, torch.Tensor)
    return summed_loss(hidden, labels, head.forward, weight.shape[0], terms)


def _chunk_loss(hidden: torch.Tensor, labels: torch.Tensor, head: Head, terms: Loss) -> torch.Tensor:
    return summed_cross_entropy(head(hidden), labels, terms)
