"""Lion: steps of equal size, along the sign of an interpolated momentum."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from worker.engine.optimizers.shards import local_part

CHUNK = 2**26
"""Elements that are updated at once; their signs are a temporary copy."""


class Lion(torch.optim.Optimizer):
    """Lion (arXiv:2302.06675, algorithm 2): u = sign(b1 m + (1 - b1) g); w -= lr (u + decay w); m = b2 m + (1 - b2) g.

    Its state is one value per parameter. Elementwise, so that each rank updates its own shards.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float]) -> None:
        """Each group has `params`, `lr` and `weight_decay`."""
        super().__init__(groups, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient. `closure` is not called."""
        for group in self.param_groups:
            for parameters in _chunks(group["params"]):
                self._update(parameters, group)

    def _update(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        first, second = group["betas"]
        weights = [local_part(parameter) for parameter in parameters]
        gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
        momenta = [local_part(self._momentum(parameter)) for parameter in parameters]
        signs = torch._foreach_lerp(momenta, gradients, 1 - first)
        torch._foreach_sign_(signs)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, signs, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, gradients, 1 - second)

    def _momentum(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter)
        momentum: torch.Tensor = state["exp_avg"]
        return momentum


def _chunks(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the parameters that have a gradient, several at once up to the size of a chunk."""
    chunk: list[torch.Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        elements = local_part(parameter).numel()
        if chunk and size + elements > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(parameter)
        size += elements
    if chunk:
        yield chunk
