"""What the engine asks of a task."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices


class Task(Protocol):
    """A model, its data and its loss. Losses are sums: the engine divides by the count of the whole global batch.

    A task may also have `losses(model, batch)`, several losses by name; `optimizers(module, spec)`, optimizers of its
    own by name; and `shuffle`. See `worker.tasks.custom.CustomTask`.
    """

    examples: Examples
    tokens_per_example: int
    """0 where the word means nothing."""

    def build_model(self) -> nn.Module:
        """A fresh model; its initial weights come from torch's global generator."""
        ...

    def weight(self, indices: Indices) -> float:
        """What the summed loss of these examples is divided by; held-out ones are counted on after those for training.
        Every rank knows the whole global batch, so the global count needs no communication."""
        ...

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """The loss, summed over the examples or tokens of the batch."""
        ...

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Sums by metric name, `eval/loss` among them."""
        ...


def check_model(spec: TrainingSpec, model: object) -> None:
    """Raises RefusedError unless build_model() returned a module."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise RefusedError(f"target `{spec.target}`: build_model() returned a {kind}, not a torch.nn.Module")


def check_losses(losses: object) -> None:
    """Of the first batch, before the first step.

    Raises:
        RefusedError: a loss is not one number, or nothing that is trained has a part in it.
    """
    if not isinstance(losses, Mapping):
        raise RefusedError(f"losses() returned a {type(losses).__name__}, not losses by name")
    for name, loss in losses.items():
        start = f"losses() returned for `{name}`" if name else "loss_sum() returned"
        if not isinstance(loss, torch.Tensor):
            raise RefusedError(f"{start} a {type(loss).__name__}, not a tensor")
        if loss.ndim:
            raise RefusedError(
                f"{start} a tensor of shape {list(loss.shape)}, not one number", "Sum the loss over the batch."
            )
        if not loss.requires_grad:
            raise RefusedError(
                f"{start} a loss without a gradient",
                "Compute it from the model's output, without detach(), item() or no_grad().",
            )
