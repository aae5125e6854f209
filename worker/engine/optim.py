"""The update rule, and the learning rate as a function of the step."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from trainyard.contract.spec import sections
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.tasks.base import Task


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


def build_optimizers(
    task: Task, spec: TrainingSpec, module: nn.Module, *, sharded: bool
) -> Mapping[str, torch.optim.Optimizer]:
    """The task's own optimizers by name, or the spec's one.

    Raises:
        RefusedError: the task's own leave out a trained parameter, or two of them hold the same one.
    """
    own: Any = getattr(task, "optimizers", None)
    if own is None:
        return {"": build_optimizer(spec.optimizer, module.parameters(), sharded=sharded)}
    found = own(module, spec)
    if not isinstance(found, Mapping) or not found:
        raise RefusedError(f"target `{spec.target}`: optimizers() returned {found!r}, not optimizers by name")
    names = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    held = [id(parameter) for optimizer in found.values() for parameter in optimizer_parameters(optimizer)]
    for key, name in names.items():
        if held.count(key) != 1:
            what = "no optimizer" if key not in held else "two optimizers"
            raise RefusedError(f"target `{spec.target}`: parameter `{name}` is in {what} of optimizers()")
    return found


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


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


class LearningRates:
    """The learning rates of all optimizers: each group follows the schedule from its own base rate."""

    def __init__(
        self, schedule: sections.Schedule, optimizers: Mapping[str, torch.optim.Optimizer], total: int
    ) -> None:
        self._schedule = schedule
        self._total = total
        self._optimizers = optimizers
        # Numbers, not the groups: loading a state puts others in their place.
        self._bases = {name: [float(group["lr"]) for group in o.param_groups] for name, o in optimizers.items()}

    def set(self, step: int) -> None:
        """For the `step`-th update, counted from 1."""
        for name, bases in self._bases.items():
            for group, base in zip(self._optimizers[name].param_groups, bases, strict=True):
                group["lr"] = learning_rate(self._schedule, base, step, self._total)

    def metrics(self) -> dict[str, float]:
        """`train/lr`; with several optimizers, the first group's of each by the optimizer's name."""
        found = {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in self._optimizers.items()}
        if len(found) == 1:
            return {"train/lr": next(iter(found.values()))}
        return {f"train/lr/{name}": rate for name, rate in found.items()}
