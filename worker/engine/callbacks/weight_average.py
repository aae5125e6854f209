"""An exponential moving average of the trained weights."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from trainyard.contract.spec.optimization import Ema
from worker.engine.callbacks.base import Callback, StepResult
from worker.engine.half_parameters import exact_value, low_half, set_exact_value
from worker.engine.optimizers.shards import local_part


class WeightAverage(Callback):
    """The average of the trained parameters, as `torch.optim.swa_utils.get_ema_multi_avg_fn` computes it: the first
    update copies the weights, each further update sets average = decay * average + (1 - decay) * weights.

    Elementwise, so that each rank averages its own shards. Buffers, such as batch statistics, are not averaged.
    """

    def __init__(self, options: Ema, module: nn.Module) -> None:
        self.options = options
        self._weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._averages = {
            name: torch.zeros_like(p, dtype=torch.float32, requires_grad=False) for name, p in self._weights.items()
        }
        self._split = any(low_half(parameter) is not None for parameter in self._weights.values())
        self._updates = 0

    @torch.no_grad()
    def on_step_end(self, result: StepResult) -> None:
        if result.step % self.options.every:
            return
        fraction = 1.0 - self.options.decay if self._updates else 1.0
        # Exact values of parameters in bf16 are copies: one at a time.
        for pairs in ([pair] for pair in self._pairs()) if self._split else [list(self._pairs())]:
            torch._foreach_lerp_([average for _, average in pairs], [weight for weight, _ in pairs], fraction)
        self._updates += 1

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average while the context is open. Before the first update it has its own weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and the average bit by bit, if there is an average yet."""
        if not self._updates:
            return
        for name, weight in self._weights.items():
            average = self._averages[name]
            former = local_part(exact_value(weight)).clone()
            set_exact_value(weight, average)
            local_part(average).copy_(former)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the averages by the names of the parameters; the tensors are not copied."""
        return dict(self._averages)

    def updates(self) -> torch.Tensor:
        """Return the number of updates so far: int64, shape ()."""
        return torch.tensor(self._updates)

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor], updates: torch.Tensor) -> None:
        for name, average in self._averages.items():
            local_part(average).copy_(local_part(state[name]))
        self._updates = int(updates)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this rank's parts of the weights, fp32, and of their averages."""
        for name, weight in self._weights.items():
            yield local_part(exact_value(weight)), local_part(self._averages[name])
