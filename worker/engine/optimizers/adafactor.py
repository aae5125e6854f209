"""Adafactor for whole and sharded parameters.

torch's own waits for the device twice for each parameter. This optimizer has two collectives in a step of sharded
parameters, and waits for nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from worker.engine.optimizers.shards import local_part, shard_group, sum_over_shards, zeros_by_row

VARIANCE_DECAY = -0.8
"""The second moment of step t is averaged with the factor 1 - t^-0.8."""
EPSILON = torch.finfo(torch.float32).eps
"""The smallest root of a second moment."""
MIN_PARAMETER_RMS = 1e-3
"""The scale of parameters that are smaller, such as zeros."""
CLIPPING = 1.0
"""The largest root mean square of an update, before the learning rate."""


@dataclass
class _Update:
    """A parameter in a step. Tensors are this rank's parts, fp32."""

    weight: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, torch.Tensor]
    shape: torch.Size
    """The shape of the whole parameter."""

    @property
    def step(self) -> float:
        return float(self.state["step"])

    @property
    def splits_columns(self) -> bool:
        """Whether a column's elements are on several ranks, if the parameter is sharded."""
        return len(self.shape) == 2

    def average_moments(self) -> list[torch.Tensor]:
        """Average the moments of which this rank has all terms. Return the sums over this rank's rows: of the squared
        weights, and of a matrix's squared gradients by column and its row moments."""
        fraction = self.step**VARIANCE_DECAY
        sums = [self.weight.square().sum()]
        if len(self.shape) < 2:
            local_part(self.state["variance"]).lerp_(self.gradient.square(), fraction)
            return sums
        squares = self.gradient.square()
        rows = local_part(self.state["row_var"])
        rows.lerp_(squares.mean(dim=-1, keepdim=True), fraction)
        if self.splits_columns:
            return [*sums, squares.sum(dim=0, keepdim=True), rows.sum()]
        local_part(self.state["col_var"]).lerp_(squares.mean(dim=-2, keepdim=True), fraction)
        return sums

    def scale_gradient(self, sums: list[torch.Tensor]) -> torch.Tensor:
        """Divide the gradient by the root of its second moment, in place. Return the sum of its squares.

        Args:
            sums: The sums of `average_moments`, over all ranks.
        """
        self.gradient.mul_(self._variance(sums).clamp_(min=EPSILON**2).rsqrt_())
        return self.gradient.square().sum()

    def _variance(self, sums: list[torch.Tensor]) -> torch.Tensor:
        if len(self.shape) < 2:
            return local_part(self.state["variance"]).clone()
        rows, columns = local_part(self.state["row_var"]), local_part(self.state["col_var"])
        if self.splits_columns:
            columns.lerp_(sums[1] / self.shape[0], self.step**VARIANCE_DECAY)
            mean = sums[2] / self.shape[0]
        else:
            mean = rows.mean(dim=-2, keepdim=True)
        return (rows @ columns).div_(mean.clamp(min=EPSILON))

    def apply(self, squared_weights: torch.Tensor, squared_update: torch.Tensor, group: dict[str, Any]) -> None:
        """Change the weights by the scaled gradient. The sums extend over all ranks."""
        count = prod(self.shape)
        clipping = ((squared_update / count).sqrt() / CLIPPING).clamp(min=1.0)
        rate = (squared_weights / count).sqrt().clamp(min=MIN_PARAMETER_RMS) * min(group["lr"], self.step**-0.5)
        if group["weight_decay"]:
            self.weight.mul_(1 - group["lr"] * group["weight_decay"])
        self.weight.sub_(self.gradient.mul_(rate / clipping))


class Adafactor(torch.optim.Optimizer):
    """Adafactor (arXiv:1804.04235, algorithms 4 and 5) with the defaults and the state of `torch.optim.Adafactor`.

    Of a matrix's second moments, only the means of rows and columns are stored. A step changes the gradients.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Each group has `params`, `lr` and `weight_decay`. `lr` is relative to a parameter's root mean square."""
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient. A collective if they are sharded. `closure` is not called."""
        trained = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not trained:
            return
        shards = shard_group(trained[0][0])
        updates = [self._start(parameter) for parameter, _ in trained]
        partial = [update.average_moments() for update in updates]
        flat = iter(sum_over_shards([value for values in partial for value in values], shards))
        sums = [[next(flat) for _ in values] for values in partial]
        scaled = [update.scale_gradient(own) for update, own in zip(updates, sums, strict=True)]
        squares = sum_over_shards(scaled, shards)
        for update, (_, group), own, square in zip(updates, trained, sums, squares, strict=True):
            update.apply(own[0], square, group)

    def _start(self, parameter: torch.Tensor) -> _Update:
        state = self.state[parameter]
        if not state:
            state |= _initial_state(parameter)
        state["step"] += 1
        assert parameter.grad is not None
        return _Update(local_part(parameter), local_part(parameter.grad), state, parameter.shape)


def _initial_state(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    shape = list(parameter.shape)
    # On the host, so that no step waits for the device.
    step = torch.tensor(0.0)
    if len(shape) < 2:
        return {"step": step, "variance": torch.zeros_like(parameter)}
    part = local_part(parameter)
    by_column = zeros_by_row(parameter, [*shape[:-2], 1, shape[-1]]) if len(shape) > 2 else part.new_zeros(1, shape[1])
    return {"step": step, "row_var": zeros_by_row(parameter, [*shape[:-1], 1]), "col_var": by_column}
