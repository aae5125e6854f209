"""Optimizers, and the learning rate as a function of the step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainyard.contract.spec import sections
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.engine.parameter_groups import parameter_groups
from worker.tasks.base import Task


def build_optimizer(spec: sections.Optimizer, module: nn.Module, *, sharded: bool = False) -> torch.optim.Optimizer:
    """Return SGD, Adam (arXiv:1412.6980) or AdamW (arXiv:1711.05101) over the parameters that require a gradient.

    Fused: one kernel per update, and with loss scaling a skipped step needs no wait for the device. torch has no fused
    SGD for sharded parameters ("aten._fused_sgd_ does not have a sharding strategy").
    """
    groups = parameter_groups(spec, module)
    if spec.name == "sgd":
        return torch.optim.SGD(groups, momentum=spec.momentum, fused=not sharded)
    adam = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return adam(groups, betas=spec.betas, eps=spec.eps, fused=True)


def build_optimizers(
    task: Task, spec: TrainingSpec, module: nn.Module, *, sharded: bool
) -> Mapping[str, torch.optim.Optimizer]:
    """Return the task's own optimizers by name, or the spec's optimizer with an empty name.

    Raises:
        RefusedError: the task's optimizers leave out a trained parameter, or two of them hold the same one.
    """
    own: Any = getattr(task, "optimizers", None)
    if own is None:
        return {"": build_optimizer(spec.optimizer, module, sharded=sharded)}
    optimizers = own(module, spec)
    if not isinstance(optimizers, Mapping) or not optimizers:
        raise RefusedError(f"target `{spec.target}`: optimizers() returned {optimizers!r}, not optimizers by name")
    names = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    held = [id(parameter) for optimizer in optimizers.values() for parameter in optimizer_parameters(optimizer)]
    for key, name in names.items():
        if held.count(key) != 1:
            number = "no optimizer" if key not in held else "two optimizers"
            raise RefusedError(f"target `{spec.target}`: parameter `{name}` is in {number} of optimizers()")
    return optimizers


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(schedule: sections.Schedule, peak: float, step: int, total: int) -> float:
    """Return the learning rate of step `step`, counted from 1, of `total`.

    Warm-up rises linearly from zero and reaches `peak` at its last step. The first step of the decay has `peak`, and
    the step after the run's last one would have `final` * peak, so that no update has rate zero. Cosine decay is that
    of SGDR without restarts (arXiv:1608.03983, equation 5); `wsd` is warm-up, stable, decay (arXiv:2404.06395,
    section 4).
    """
    warmup = schedule.warmup_steps or round(schedule.warmup_ratio * total)
    if step < warmup:
        return peak * step / warmup
    stable_until = max(warmup, total - round(schedule.decay_ratio * total)) if schedule.name == "wsd" else warmup
    progress = max(0, step - 1 - stable_until) / max(1, total - stable_until)
    match schedule.name:
        case "constant":
            return peak
        case "linear" | "wsd":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (schedule.final + (1.0 - schedule.final) * factor)


class LearningRates:
    """Sets the learning rates of all optimizers: each parameter group follows the schedule from its own base rate."""

    def __init__(
        self, schedule: sections.Schedule, optimizers: Mapping[str, torch.optim.Optimizer], total_steps: int
    ) -> None:
        self._schedule = schedule
        self._total_steps = total_steps
        self.optimizers = optimizers
        # Numbers instead of the groups: loading an optimizer's state replaces its groups.
        self._bases = {name: [float(group["lr"]) for group in o.param_groups] for name, o in optimizers.items()}

    def set(self, step: int) -> None:
        """Set the rates for step `step`, counted from 1."""
        for name, bases in self._bases.items():
            for group, base in zip(self.optimizers[name].param_groups, bases, strict=True):
                group["lr"] = learning_rate(self._schedule, base, step, self._total_steps)

    def metrics(self) -> dict[str, float]:
        """Return `train/lr`; with several optimizers, `train/lr/<name>` with the rate of each one's first group."""
        rates = {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in self.optimizers.items()}
        if len(rates) == 1:
            return {"train/lr": next(iter(rates.values()))}
        return {f"train/lr/{name}": rate for name, rate in rates.items()}
