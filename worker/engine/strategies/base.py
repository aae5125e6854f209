"""The interface of a model under a parallel strategy, for the step and the evaluation."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


def draws_dropout(module: nn.Module) -> bool:
    """Return whether training uses dropout; transformers' models have it in their configuration."""
    if any(isinstance(inner, nn.Dropout) and inner.p > 0 for inner in module.modules()):
        return True
    config: Any = getattr(module, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else {}
    return any(
        value for name, value in values.items() if name.endswith(("dropout", "pdrop")) and isinstance(value, float)
    )


@dataclass(frozen=True)
class ParallelModel:
    """A whole model on one device. The other strategies derive from it."""

    forward: nn.Module
    """The module that a step calls."""
    module: nn.Module
    """The module whose parameter names checkpoints use."""

    @property
    def gradient_divisor(self) -> int:
        """The divisor of the sums of gradients over the ranks. The loss must be multiplied by it."""
        return 1

    @property
    def dry_run_module(self) -> nn.Module:
        """The module that a dry run calls: without communication if each rank holds the whole model."""
        return self.module

    @property
    def evaluation_module(self) -> nn.Module:
        """The module that evaluation calls."""
        return self.module

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward, which defers communication that can wait for the
        last micro-batch."""
        return contextlib.nullcontext()

    def norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Return the 2-norm of all gradients of the whole model: fp32, shape (). A collective if sharded."""
        if all(gradient.dtype == torch.float32 for gradient in gradients):
            norm: torch.Tensor = nn.utils.get_total_norm(gradients)
            return norm
        total: torch.Tensor = torch.linalg.vector_norm(self._norms(gradients))
        return total

    def _norms(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Return the 2-norm of each gradient: fp32, (gradients,). torch would compute the norm of bf16 gradients in
        bf16."""
        return torch.stack(torch._foreach_norm(gradients, 2, torch.float32))

    def release(self) -> None:
        """Free the memory that a forward without a backward leaves behind, such as gathered parameters."""
