"""A model under a strategy, as the step and the evaluation see it."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


def draws_dropout(module: nn.Module) -> bool:
    """Whether training draws at random what to leave out; models of transformers say so in their configuration."""
    if any(isinstance(inner, nn.Dropout) and inner.p > 0 for inner in module.modules()):
        return True
    config: Any = getattr(module, "config", None)
    told = config.to_dict() if hasattr(config, "to_dict") else {}
    return any(
        value for name, value in told.items() if name.endswith(("dropout", "pdrop")) and isinstance(value, float)
    )


@dataclass(frozen=True)
class ParallelModel:
    """The plain one: a whole model on one device. Strategies with more to say derive from it."""

    forward: nn.Module
    """What a training step calls."""
    module: nn.Module
    """Whose names checkpoints use."""

    @property
    def dry_run_module(self) -> nn.Module:
        """What is called to see whether a batch fits: without communication where the model is whole on each rank."""
        return self.module

    @property
    def evaluation_module(self) -> nn.Module:
        """What evaluation calls."""
        return self.module

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Around a micro-batch's forward and backward: what need not be communicated before the last one, is not."""
        return contextlib.nullcontext()

    def norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The 2-norm of all of them as one vector, of the whole model's on every rank. A collective where sharded."""
        norm: torch.Tensor = nn.utils.get_total_norm(gradients)
        return norm

    def release(self) -> None:
        """Give back what a forward without a backward left behind."""
