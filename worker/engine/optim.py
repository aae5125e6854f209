"""Optimizers, and the learning rate as a function of the step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainyard.contract.spec.optimization import Schedule
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.engine.optimizers.adafactor import Adafactor
from worker.engine.optimizers.bucketed import BucketedOptimizer
from worker.engine.optimizers.lion import Lion
from worker.engine.optimizers.muon import MuonWithAdamW
from worker.engine.parameter_groups import hidden_matrices, parameter_groups
from worker.tasks.base import Task


def build_optimizer(spec: TrainingSpec, module: nn.Module, *, sharded: bool = False) -> torch.optim.Optimizer:
    """Return the spec's optimizer over the parameters that require a gradient. With parameters in bf16 or moments in
    fewer bits it updates a bucket at a time in fp32, with the same arithmetic.

    Raises:
        RefusedError: Muon has no matrix to train, or a pattern of `lr_scale` matches nothing.
    """
    optimizer = _build_plain(spec, module, sharded=sharded)
    options = spec.optimizer
    if not converts_values(spec):
        return optimizer
    counts_steps = options.name in ("adam", "adamw")
    moments = _MOMENTS[options.name] if options.name != "sgd" or options.momentum else ()
    return BucketedOptimizer(
        optimizer,
        moments=moments,
        dtype=options.state_dtype,
        counts_steps=counts_steps,
        seed=spec.seed,
        compiled=spec.compile is True,
    )


def converts_values(spec: TrainingSpec) -> bool:
    """Return whether the parameters or the optimizer's state are stored in another type than fp32."""
    return spec.param_dtype != "fp32" or spec.optimizer.state_dtype != "fp32"


def _build_plain(spec: TrainingSpec, module: nn.Module, *, sharded: bool) -> torch.optim.Optimizer:
    """Return the spec's optimizer with moments in the type of the parameters.

    SGD, Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101) are fused: one kernel per update, and with loss scaling a
    skipped step needs no wait for the device. torch has no fused SGD for sharded parameters ("aten._fused_sgd_ does not
    have a sharding strategy").

    Raises:
        RefusedError: Muon has no matrix to train, or a pattern of `lr_scale` matches nothing.
    """
    options, groups = spec.optimizer, parameter_groups(spec.optimizer, module)
    match options.name:
        case "sgd":
            return torch.optim.SGD(groups, momentum=options.momentum, fused=not sharded)
        case "adam":
            return torch.optim.Adam(groups, betas=options.betas, eps=options.eps, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, betas=options.betas, eps=options.eps, fused=True)
        case "lion":
            return Lion(groups, betas=options.betas)
        case "adafactor":
            return Adafactor(groups)
        case "muon":
            return _build_muon(spec, module, groups)


_MOMENTS = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "lion": ("exp_avg",),
}
"""The state of the elementwise optimizers that has the shape of the parameters."""


def _build_muon(spec: TrainingSpec, module: nn.Module, groups: list[dict[str, Any]]) -> MuonWithAdamW:
    matrices, options = hidden_matrices(module), spec.optimizer
    if not any(id(parameter) in matrices for group in groups for parameter in group["params"]):
        raise RefusedError(
            "optimizer.name: `muon` is for matrices of hidden layers, and none is trained", "Use `adamw`."
        )
    return MuonWithAdamW(
        groups,
        matrices,
        momentum=options.momentum,
        betas=options.betas,
        eps=options.eps,
        # Rounding to bf16 would make the updates depend on the layout in the third digit.
        dtype=torch.float32 if spec.precision_kind.computes_in_fp32 else torch.bfloat16,
    )


def build_optimizers(
    task: Task, spec: TrainingSpec, module: nn.Module, *, sharded: bool
) -> Mapping[str, torch.optim.Optimizer]:
    """Return the task's own optimizers by name, or the spec's optimizer with an empty name.

    Raises:
        RefusedError: the task's optimizers leave out a trained parameter, two of them hold the same parameter, or they
            would have to update parameters in bf16.
    """
    own = task.optimizers
    if own is None:
        return {"": build_optimizer(spec, module, sharded=sharded)}
    if converts_values(spec):
        raise RefusedError(
            f"target `{spec.target}`: its own optimizers() update parameters in fp32 alone",
            "Set `param_dtype` and `optimizer.state_dtype` to `fp32`.",
        )
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


def clip_gradients(optimizer: torch.optim.Optimizer, largest: float, norm: torch.Tensor) -> None:
    """Limit the 2-norm of an optimizer's gradients, which is `norm`."""
    if isinstance(optimizer, BucketedOptimizer):
        # As torch computes it. The update reads the gradients anyway.
        optimizer.gradient_factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    else:
        nn.utils.clip_grads_with_norm_(optimizer_parameters(optimizer), largest, norm)


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(schedule: Schedule, peak: float, step: int, total: int) -> float:
    """Return the learning rate of step `step`, counted from 1, of `total`.

    Warm-up rises linearly from zero and reaches `peak` at its last step. The first step of the decay has `peak`, and
    the step after the run's last step would have `final` * peak, so that no update has rate zero. Cosine decay follows
    SGDR without restarts (arXiv:1608.03983, equation 5); `wsd` is warm-up, stable, decay (arXiv:2404.06395,
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

    def __init__(self, schedule: Schedule, optimizers: Mapping[str, torch.optim.Optimizer], total_steps: int) -> None:
        self._schedule = schedule
        self._total_steps = total_steps
        self.optimizers = optimizers
        # Numbers instead of the groups: loading an optimizer's state replaces its groups.
        self._bases = {name: [float(group["lr"]) for group in o.param_groups] for name, o in optimizers.items()}

    def set(self, step: int) -> None:
        """Set the rates for step `step`, counted from 1, and the step on which random rounding depends."""
        for name, bases in self._bases.items():
            optimizer = self.optimizers[name]
            if isinstance(optimizer, BucketedOptimizer):
                optimizer.current_step = step
            for group, base in zip(optimizer.param_groups, bases, strict=True):
                group["lr"] = learning_rate(self._schedule, base, step, self._total_steps)

    def metrics(self) -> dict[str, float]:
        """Return `train/lr`; with several optimizers, `train/lr/<name>`, the rate of an optimizer's first group."""
        rates = {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in self.optimizers.items()}
        if len(rates) == 1:
            return {"train/lr": next(iter(rates.values()))}
        return {f"train/lr/{name}": rate for name, rate in rates.items()}
