"""Losses of objectives that learn from preferences. Pure functions of log-probabilities.

Notation: for a prompt x, y_w is the chosen and y_l the rejected answer, p the model, r the reference, s the logistic
function. Arguments are fp32 of shape (n,); log-probabilities cover whole answers, in nats.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from trainyard.contract.spec.objectives import Preference


@dataclass(frozen=True)
class Answers:
    """Log-probabilities of n answers."""

    logps: torch.Tensor
    """Summed over the tokens of each answer."""
    lengths: torch.Tensor
    """The number of tokens of each answer."""
    reference: torch.Tensor
    """The reference's log-probabilities; not used by all losses."""

    @property
    def mean_logps(self) -> torch.Tensor:
        """The log-probabilities by token."""
        return self.logps / self.lengths

    @property
    def ratios(self) -> torch.Tensor:
        """log p(y|x) - log r(y|x)."""
        return self.logps - self.reference


def dpo_losses(chosen: Answers, rejected: Answers, options: Preference, beta: float) -> torch.Tensor:
    """Return the loss of each pair, with the margin d = log p(y_w|x) / r(y_w|x) - log p(y_l|x) / r(y_l|x):

    sigmoid: -(1 - e) log s(beta d) - e log s(-beta d), with label smoothing e (DPO, arXiv:2305.18290, equation 7; with
    e: section "conservative DPO" of the authors' note https://ericmitchell.ai/cdpo.pdf).
    hinge: max(0, 1 - beta d) (SLiC, arXiv:2305.10425, as in RSO, arXiv:2309.06657).
    ipo: (d' - 1 / (2 beta))^2, where d' is d with log-probabilities by token (IPO, arXiv:2310.12036, equation 17; by
    token as its authors confirmed to TRL).
    """
    if options.loss_type == "ipo":
        margins = chosen.ratios / chosen.lengths - rejected.ratios / rejected.lengths
        return (margins - 1 / (2 * beta)).square()
    margins = beta * (chosen.ratios - rejected.ratios)
    if options.loss_type == "hinge":
        return functional.relu(1 - margins)
    smoothing = options.label_smoothing
    return -(1 - smoothing) * functional.logsigmoid(margins) - smoothing * functional.logsigmoid(-margins)


def orpo_losses(chosen: Answers, rejected: Answers, beta: float) -> torch.Tensor:
    """Return the loss of each pair (ORPO, arXiv:2403.07691, equations 6 and 7), where P(y|x) is the geometric mean of
    the probabilities of the tokens of y, and odds(y|x) = P(y|x) / (1 - P(y|x)):

    -log P(y_w|x) - beta log s(log odds(y_w|x) - log odds(y_l|x)).
    """
    ratio = _log_odds(chosen.mean_logps) - _log_odds(rejected.mean_logps)
    return -chosen.mean_logps - beta * functional.logsigmoid(ratio)


def _log_odds(logps: torch.Tensor) -> torch.Tensor:
    # log(1 - exp(x)) by expm1 has its digits also where the probability is near 1.
    return logps - torch.log(-torch.expm1(logps.clamp(max=-1e-7)))


def simpo_losses(chosen: Answers, rejected: Answers, options: Preference, beta: float) -> torch.Tensor:
    """Return the loss of each pair (SimPO, arXiv:2405.14734, equation 6):

    -log s(beta / |y_w| log p(y_w|x) - beta / |y_l| log p(y_l|x) - gamma).
    """
    margins = beta * (chosen.mean_logps - rejected.mean_logps)
    return -functional.logsigmoid(margins - options.simpo_gamma)


def kto_losses(
    answers: Answers, desirable: torch.Tensor, divergence: torch.Tensor, options: Preference, beta: float
) -> torch.Tensor:
    """Return the loss of each answer (KTO, arXiv:2402.01306, equation 8), with q = log p(y|x) / r(y|x):

    desirable: weight (1 - s(beta (q - z))), undesirable: weight (1 - s(beta (z - q))).

    Args:
        desirable: bool, (n,).
        divergence: z, the mean of log p / r over answers to other prompts, at least 0; shape ().
    """
    difference = beta * (answers.ratios - divergence)
    return torch.where(
        desirable,
        options.desirable_weight * torch.sigmoid(-difference),
        options.undesirable_weight * torch.sigmoid(difference),
    )
