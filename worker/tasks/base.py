"""The base class of tasks, and checks of the values that a task returns."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.answers import AnswerExamples
from worker.data.examples import BatchTokens, Examples, Tensors
from worker.data.notices import Notice
from worker.data.sampler import Indices
from worker.deferred.model import DeferredModel


class Task:
    """A model, its data and its loss. Losses are sums: the engine divides them by the weight of the global batch.

    Every task has `examples` and the three abstract methods; all other members have a default. The class is no ABC, so
    that a user's class may have any metaclass.
    """

    examples: Examples
    tokens_per_example: int = 0
    """The mean number of tokens per example, for throughput; 0 for a task without tokens."""
    shuffle: bool = True
    """Whether each epoch has another order; if the spec has `data`, `data.shuffle` decides."""
    classes: Sequence[str] = ()
    """The names of the outputs of a model that classifies."""
    notices: Sequence[Notice] = ()
    """Facts about the data that a user should know."""
    needs_reference: bool = False
    """Whether `reference_logps` is called before the first step. The examples are `AnswerExamples` then."""
    shares_mean: bool = False
    """Whether the loss of an example needs the mean of `shared_sum` over the whole batch."""
    flops_per_example: Callable[[nn.Module], float] | None = None
    """Returns the FLOPs of the forward and backward of an example; None: they are derived from the model."""
    optimizers: Callable[[nn.Module, TrainingSpec], Mapping[str, torch.optim.Optimizer]] | None = None
    """Returns the optimizers of the task by name; None: the spec describes the only optimizer."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model, initialised from torch's global generator."""

    def deferred_model(self) -> DeferredModel | None:
        """Return the model without its stored parameters; None if no parameters are stored.

        Raises:
            CannotDeferError: The model must be loaded whole.
        """
        return None

    def weight(self, indices: Indices) -> float:
        """Return the divisor of the summed loss of these examples (int64, shape (n,)): their number, or the number of
        their target tokens. Held-out examples are numbered after training examples. Every rank computes it for the
        whole global batch, so no communication is needed."""
        return float(len(indices))

    @abstractmethod
    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the loss summed over the examples or tokens of the batch: fp32, shape ()."""

    def losses(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return several losses by name, each summed over the batch. Their gradients add up; each has its own curve.
        Empty: `loss_sum` returns the only loss."""
        return {}

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]] | None:
        """Return the summed loss, and sums of measured values by the ends of their names; each of shape (). None: the
        task measures nothing beside its losses in training."""
        return None

    @abstractmethod
    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return sums over the batch by metric name, `eval/loss` among them; each of shape ()."""

    def metric_weight(self, name: str, indices: Indices) -> float:
        """Return the divisor of the sum of a metric other than the loss over these examples; 0 if none of them has the
        value."""
        return float(len(indices))

    def complete_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics, including metrics that follow from others."""
        return dict(means)

    def reference_logps(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the log-probabilities of the answers of n sequences, inputs and labels: fp32, (n,)."""
        raise NotImplementedError("a task with `needs_reference` defines reference_logps()")

    def shared_batch(self, batch: Indices, positions: Indices, device: torch.device) -> Tensors:
        """Return the tensors of `shared_sum` at some positions of a global batch of training or held-out examples."""
        raise NotImplementedError("a task with `shares_mean` defines shared_batch()")

    def shared_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the shared value summed over these positions: fp32, shape (). It has no gradient."""
        raise NotImplementedError("a task with `shares_mean` defines shared_sum()")

    def set_shared_mean(self, mean: torch.Tensor) -> None:
        """Set the mean for the losses that follow: fp32, shape ()."""
        raise NotImplementedError("a task with `shares_mean` defines set_shared_mean()")


def answers_of(task: Task) -> AnswerExamples:
    """Return the examples of a task that needs a reference."""
    assert isinstance(task.examples, AnswerExamples), "a reference reads answers"
    return task.examples


def count_tokens(task: Task, indices: Indices) -> BatchTokens:
    """Return the tokens of these examples: their own, or the task's mean number for each."""
    counts = task.examples.token_counts
    if counts is not None:
        return counts.of(indices)
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
