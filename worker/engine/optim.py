"""The update rule, and the learning rate as a function of the step."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from trainyard.contract import sections


def build_optimizer(
    spec: sections.Optimizer, parameters: Iterable[nn.Parameter], *, sharded: bool = False
) -> torch.optim.Optimizer:
    """Fused: one kernel an update, and with loss scaling a skipped step needs no wait for the device.

    torch has no fused SGD for sharded parameters ("aten._fused_sgd_ does not have a sharding strategy").
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    match spec.name:
        case "sgd":
            return torch.optim.SGD(
                trained, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=not sharded
            )
        case "adam":
            return torch.optim.Adam(
                trained, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=True
            )
        case "adamw":
            return torch.optim.AdamW(
                trained, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=True
            )


def learning_rate(schedule: sections.Schedule, peak: float, step: int, total: int) -> float:
    """The rate of the `step`-th update, counted from 1.

    Warm-up rises from zero and reaches the peak with its last step; decay reaches `final` times it with the run's.
    """
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / max(1, total - schedule.warmup_steps)
    match schedule.name:
        case "constant":
            return peak
        case "linear":
            shape = 1.0 - progress
        case "cosine":
            shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (schedule.final + (1.0 - schedule.final) * shape)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
