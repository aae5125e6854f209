"""The protocol of a task, and checks of the values that a task returns."""

from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np
import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.answers import AnswerExamples
from worker.data.examples import BatchTokens, Examples, Tensors
from worker.data.sampler import Indices


class Task(Protocol):
    """A model, its data and its loss. Losses are sums: the engine divides them by the weight of the global batch.

    A task may also define `losses(model, batch)` (several losses by name), `optimizers(module, spec)` (its own
    optimizers by name), `flops_per_example(model)` and `shuffle`. See `worker.tasks.custom.CustomTask`.
    """

    examples: Examples
    tokens_per_example: int
    """The mean number of tokens per example; 0 for a task without tokens."""

    def build_model(self) -> nn.Module:
        """Return a new model, initialised from torch's global generator."""
        ...

    def weight(self, indices: Indices) -> float:
        """Return the divisor of the summed loss of these examples (int64, shape (n,)): their number, or the number of
        their target tokens. Held-out examples are numbered after those for training. Every rank computes it for the
        whole global batch, so no communication is needed."""
        ...

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the loss summed over the examples or tokens of the batch: fp32, shape ()."""
        ...

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return sums over the batch by metric name, `eval/loss` among them; each of shape ()."""
        ...


class MeasuringTask(Task, Protocol):
    """A task that measures values beside its loss in training."""

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the summed loss, and sums of measured values by the ends of their names; each of shape ()."""
        ...

    def metric_weight(self, name: str, indices: Indices) -> float:
        """Return the divisor of a measured sum over these examples; 0 if none of them has the value."""
        ...

    def complete_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics with those that follow from others."""
        ...


class SharingTask(Task, Protocol):
    """A task whose loss of an example needs the mean of a value over the whole batch."""

    shares_mean: bool
    """Whether the task does."""

    def shared_batch(self, batch: Indices, positions: Indices, device: torch.device) -> Tensors:
        """Return the tensors from which the value is computed at some positions of a global batch of training or
        held-out examples."""
        ...

    def shared_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the value summed over these positions: fp32, shape (). It has no gradient."""
        ...

    def set_shared_mean(self, mean: torch.Tensor) -> None:
        """Set the mean for the losses that follow: fp32, shape ()."""
        ...


class ReferencedTask(Protocol):
    """A task that compares the model with itself before its first step."""

    answers: AnswerExamples
    """The examples."""

    def reference_logps(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the log-probabilities of the answers of n sequences, inputs and labels: fp32, (n,)."""
        ...


def measuring(task: Task) -> MeasuringTask | None:
    """Return the task if it measures values beside its loss."""
    return cast(MeasuringTask, task) if hasattr(task, "measured_loss") else None


def sharing(task: Task) -> SharingTask | None:
    """Return the task if its loss needs a mean over the batch."""
    return cast(SharingTask, task) if getattr(task, "shares_mean", False) else None


def referenced(task: Task) -> ReferencedTask | None:
    """Return the task if it needs a reference."""
    return cast(ReferencedTask, task) if getattr(task, "needs_reference", False) else None


def largest_examples(task: Task, count: int) -> Indices:
    """Return `count` training examples that need the most memory, as far as the task's examples know their sizes."""
    largest = getattr(task.examples, "largest", None)
    chosen: Indices = largest(count) if largest else np.arange(count, dtype=np.int64)
    return chosen


def count_tokens(task: Task, indices: Indices) -> BatchTokens:
    """Return the tokens of these examples: their own, or the task's mean number for each."""
    counts = getattr(task.examples, "token_counts", None)
    if counts is not None:
        tokens: BatchTokens = counts.of(indices)
        return tokens
    each = task.tokens_per_example
    return BatchTokens(len(indices) * each, float(len(indices) * each**2))


def check_model(spec: TrainingSpec, model: object) -> None:
    """Raise RefusedError unless build_model() returned a module."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise RefusedError(f"target `{spec.target}`: build_model() returned a {kind}, not a torch.nn.Module")


def check_losses(losses: object) -> None:
    """Check the losses of the first batch, before the first step.

    Raises:
        RefusedError: A loss is not a scalar tensor, or has no gradient.
    """
    if not isinstance(losses, Mapping):
        raise RefusedError(f"losses() returned a {type(losses).__name__}, not losses by name")
    for name, loss in losses.items():
        start = f"losses() returned for `{name}`" if name else "loss_sum() returned"
        if not isinstance(loss, torch.Tensor):
            raise RefusedError(f"{start} a {type(loss).__name__}, not a tensor")
        if loss.ndim:
            raise RefusedError(
                f"{start} a tensor of shape {list(loss.shape)}, not a scalar", "Sum the loss over the batch."
            )
        if not loss.requires_grad:
            raise RefusedError(
                f"{start} a loss without a gradient",
                "Compute it from the model's output, without detach(), item() or no_grad().",
            )
