"""Cross entropy of next tokens, without ever holding the logits of all of them."""

from collections.abc import Callable

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from worker.data.examples import IGNORED_LABEL

MOST_LOGITS = 2**26
"""Logits that exist at once: 256 MiB in fp32, 512 tokens of a vocabulary of 131072."""

Head = Callable[[torch.Tensor], torch.Tensor]


def summed_loss(
    hidden: torch.Tensor, labels: torch.Tensor, head: Head, vocabulary: int, *, most: int = MOST_LOGITS
) -> torch.Tensor:
    """The loss in nats, summed over the targets.

    Where the logits would be more than `most`, they are computed piece by piece, and once more in the backward. The
    head's weights must be whole where this runs: inside the forward of the module that owns them.

    Args:
        hidden: (batch, length, width), what the head turns into logits.
        labels: (batch, length), the token that follows each position, or `IGNORED_LABEL`.
    """
    hidden, labels = hidden.flatten(0, 1), labels.flatten()
    piece = max(1, most // vocabulary)
    if len(hidden) <= piece:
        return token_loss(head(hidden), labels)
    total = torch.zeros((), device=hidden.device)
    for part, targets in zip(torch.split(hidden, piece), torch.split(labels, piece), strict=True):
        loss = checkpoint(_piece, part, targets, head, use_reentrant=False)
        assert isinstance(loss, torch.Tensor)
        total = total + loss
    return total


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same of logits (tokens, vocabulary) and labels (tokens)."""
    return functional.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED_LABEL)


def _piece(hidden: torch.Tensor, labels: torch.Tensor, head: Head) -> torch.Tensor:
    return token_loss(head(hidden), labels)
