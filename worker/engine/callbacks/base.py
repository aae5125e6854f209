"""The shape of a callback, and the result of a step that callbacks receive."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worker.data.examples import BatchTokens
from worker.engine.step_clock import StepMarks


@dataclass(frozen=True)
class StepResult:
    """The outcome of one step on this rank. Tensors stay on the device, so that only a callback that reads a value
    waits for it."""

    step: int
    """The number of the step, counted from 1."""
    examples: int
    """Examples of the global batch."""
    tokens: BatchTokens
    """Tokens of the global batch; zeros for a task without tokens."""
    loss: torch.Tensor
    """fp32, shape (): this rank's part of the global loss; the sum over the ranks is the loss."""
    losses: dict[str, torch.Tensor]
    """fp32, shape () each: this rank's part of each named loss of the task; the only name of a single loss is empty."""
    measured: dict[str, torch.Tensor]
    """fp32, shape () each: this rank's part of the mean of each value that the task measures beside its loss; none in a
    step that is not logged."""
    grad_norm: torch.Tensor | None
    """fp32, shape (): the 2-norm of the unscaled gradients before clipping; None where it was not computed."""
    marks: StepMarks
    """The times of its phases."""


class Callback:
    """A policy around the training loop. The methods do nothing here; a callback overrides the methods that it needs.

    `on_..._start` is called in the order of the trainer's list and `on_..._end` in reverse order, as for nested context
    managers. Every rank calls the same methods at the same steps, so a method may be a collective.
    """

    def on_step_start(self, step: int) -> None:
        """Called before step `step`, counted from 1."""

    def on_step_end(self, result: StepResult) -> None:
        """Called after a step. Must not wait for the device in a step that does not log."""

    def on_evaluation_start(self, step: int) -> None:
        """Called before an evaluation after step `step`."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation with the means over the held-out examples."""

    def on_checkpoint_start(self, step: int) -> None:
        """Called before the state after step `step` is captured."""

    def on_checkpoint_end(self, step: int) -> None:
        """Called when training may go on; an asynchronous checkpoint is not on disk yet."""

    def on_loop_end(self, step: int) -> None:
        """Called after the last step of this execution, before its last checkpoint."""
