"""Cross entropy with label smoothing and z-loss, in one pass over the logits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from trainyard.contract.spec.optimization import Loss
from worker.data.examples import IGNORED_LABEL

PLAIN = Loss()
"""The cross entropy alone."""


class PerRow:
    """Requests the cross entropy of each row instead of a sum: fp32, (batch,). It is the negative log-probability of
    the row's targets, given the tokens before each."""


PER_ROW = PerRow()


@dataclass(frozen=True)
class Counted:
    """Requests the loss, and the number of targets with the largest logit, which has no gradient: fp32, (2,)."""

    loss: Loss


@dataclass(frozen=True)
class FewTargets:
    """Requests `terms`, where the number of targets is known to the host."""

    terms: Loss | Counted
    most: int
    """The batch has at most so many targets."""


Terms = Loss | PerRow | Counted | FewTargets
"""The result that a model computes from its logits."""


def cross_entropy_of(logits: torch.Tensor, labels: torch.Tensor, terms: Terms) -> torch.Tensor:
    """Return the loss that `terms` requests.

    Args:
        logits: (batch, length, classes).
        labels: int64, (batch, length); positions with `IGNORED_LABEL` do not count.
    """
    flat = logits.flatten(0, 1), labels.flatten()
    if isinstance(terms, FewTargets):
        terms = terms.terms
    if isinstance(terms, PerRow):
        return each_cross_entropy(*flat).view(labels.shape).sum(dim=1)
    return summed_terms(*flat, terms)


def summed_terms(logits: torch.Tensor, labels: torch.Tensor, terms: Loss | Counted) -> torch.Tensor:
    """Return the summed loss (fp32, shape ()), or with the number of hits (fp32, (2,)).

    Args:
        logits: (targets, classes).
        labels: int64, (targets,); positions with `IGNORED_LABEL` do not count.
    """
    if isinstance(terms, Loss):
        return summed_cross_entropy(logits, labels, terms)
    # No class has the number `IGNORED_LABEL`.
    hits = (logits.detach().argmax(dim=-1) == labels).sum()
    return torch.stack([summed_cross_entropy(logits, labels, terms.loss), hits.float()])


def each_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each position in nats, 0 where there is no target: fp32, (targets,)."""
    return functional.cross_entropy(logits.float(), labels, reduction="none", ignore_index=IGNORED_LABEL)


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, options: Loss = PLAIN) -> torch.Tensor:
    """Return the cross entropy in nats with the terms of `options`, summed over the targets: fp32, shape ().

    For a target t among K classes with logits x and Z = sum exp(x):
    log Z - (1 - smoothing) x_t - smoothing mean(x) + z_loss (log Z)^2.

    Args:
        logits: (targets, classes).
        labels: int64, (targets,); positions with `IGNORED_LABEL` do not count.
    """
    if options == PLAIN:
        return functional.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED_LABEL)
    loss: torch.Tensor = _SummedLoss.apply(logits.float(), labels, options.label_smoothing, options.z_loss)  # type: ignore[no-untyped-call]
    return loss


class _SummedLoss(torch.autograd.Function):
    """Saves a single copy of the logits, as cross entropy does; autograd would save a copy for each term."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, smoothing: float, z_loss: float) -> torch.Tensor:
        counted = labels != IGNORED_LABEL
        targets = labels.clamp(min=0)[:, None]
        normalizer = logits.logsumexp(dim=-1)
        ctx.save_for_backward(logits, normalizer, targets, counted)
        ctx.smoothing, ctx.z_loss = smoothing, z_loss
        expected = (1 - smoothing) * logits.gather(-1, targets).squeeze(-1) + smoothing * logits.mean(dim=-1)
        losses = normalizer - expected + z_loss * normalizer.square()
        return torch.where(counted, losses, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, normalizer, targets, counted = ctx.saved_tensors
        result = (logits - normalizer[:, None]).exp_()
        result.mul_((1 + 2 * ctx.z_loss * normalizer)[:, None]).sub_(ctx.smoothing / logits.shape[-1])
        result.scatter_add_(-1, targets, torch.full_like(targets, ctx.smoothing - 1, dtype=result.dtype))
        result.mul_((gradient * counted)[:, None])
        return result, None, None, None
