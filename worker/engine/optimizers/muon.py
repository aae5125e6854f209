"""Muon for the matrices of hidden layers, and AdamW for all other parameters."""

import math
from collections.abc import Callable, Collection
from typing import Any

import torch

from worker.engine.optimizers.shards import local_part, part_of, whole_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) with Nesterov momentum, as `torch.optim.Muon`, and AdamW.

    The rate of a matrix is lr * 0.2 * sqrt(longest side), which gives its updates the root mean square of AdamW's
    (arXiv:2502.16982, section 2.2): the same learning rate and weight decay serve both. Filters of convolutions are
    matrices with one row for each output channel.

    Each rank stores the momentum of its shards alone. It gathers one matrix's update at a time, orthogonalises it, and
    applies its own rows. One optimizer for both, so that loss scaling skips all updates of a step or none.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: Collection[int],
        *,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        dtype: torch.dtype,
    ) -> None:
        """Each group has `params`, `lr` and `weight_decay`.

        Args:
            matrices: The ids of the parameters for Muon.
            momentum: The momentum of Muon.
            betas, eps: The options of AdamW.
            dtype: The type in which the iteration computes: bf16 suffices, and fp32 agrees over all layouts.
        """
        split = [part for group in groups for part in _split(group, matrices, momentum) if part["params"]]
        by_adamw = [group for group in split if "momentum" not in group]
        self._dtype = dtype
        self._adamw = torch.optim.AdamW(by_adamw, betas=betas, eps=eps, fused=True) if by_adamw else None
        super().__init__(split, {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Give AdamW its groups and the state of this optimizer; loading a state replaces both."""
        if self._adamw is not None:
            self._adamw.param_groups = [group for group in self.param_groups if "momentum" not in group]
            self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient. A collective if they are sharded. `closure` is not called."""
        if self._adamw is not None:
            self._adamw.step()
        for group in self.param_groups:
            if "momentum" in group:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        buffer, gradient = local_part(state["momentum_buffer"]), local_part(parameter.grad)
        buffer.lerp_(gradient, 1 - group["momentum"])
        update = whole_of(gradient.lerp(buffer, group["momentum"]), parameter)
        matrix = orthogonalised(update.flatten(1), self._dtype)
        rate = group["lr"] * 0.2 * math.sqrt(max(matrix.shape))
        weight = local_part(parameter)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(part_of(matrix.reshape(update.shape), parameter), alpha=-rate)


def orthogonalised(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return U V' of a matrix U S V', roughly: the singular values are between 0.5 and 1.5. Shape as before.

    The Newton-Schulz iteration of fifth order from the post that introduced Muon.
    """
    a, b, c = COEFFICIENTS
    upright = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(dtype, copy=True)
    x = x.mT if upright else x
    x.div_(x.norm().clamp(min=SMALLEST_NORM))
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if upright else x


def _split(group: dict[str, Any], matrices: Collection[int], momentum: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a group's matrices and its other parameters; a group with a momentum belongs to Muon."""
    inside = [parameter for parameter in group["params"] if id(parameter) in matrices]
    others = [parameter for parameter in group["params"] if id(parameter) not in matrices]
    return group | {"params": inside, "momentum": momentum}, group | {"params": others}
