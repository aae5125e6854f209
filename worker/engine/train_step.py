"""One training step: micro-batches forward and backward, unscale, clip, update."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import nn

from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.core.errors import TrainingError
from worker.data.batch_loader import BatchLoader
from worker.data.examples import Tensors
from worker.data.sampler import Indices, micro_batch_length, micro_batches
from worker.engine.callbacks.base import StepResult
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.micro_batch_size import preserve_buffers
from worker.engine.optim import LearningRates, clip_gradients, optimizer_parameters
from worker.engine.precision import Precision
from worker.engine.shared_mean import set_shared_mean
from worker.engine.step_clock import StepMarks, step_clock
from worker.engine.strategies.base import ParallelModel
from worker.tasks.base import Task, check_losses, count_tokens

_ONE_VALUE = "Expected more than 1 value per channel"
"""Part of the message with which torch's batch normalization refuses a batch."""


class TrainStep:
    """Computes steps. The loss of a step is the sum over the examples of the global batch divided by their weight,
    L = sum_i l_i / W, so it does not depend on the number of ranks or on the micro-batch size."""

    def __init__(
        self,
        task: Task,
        model: ParallelModel,
        learning_rates: LearningRates,
        precision: Precision,
        guard: NonFiniteGuard,
        ranks: Ranks,
        *,
        micro_batch_size: int | None,
        clip_norm: float | None,
        progress: ProgressCounter,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            micro_batch_size: Examples that a rank computes at once; None for its whole share of the batch.
            before_update: Called in each step before anything of the state that checkpoints hold may change.
        """
        self._task = task
        self._model = model
        self._learning_rates = learning_rates
        self._optimizers = list(learning_rates.optimizers.values())
        self._precision = precision
        self._guard = guard
        self._ranks = ranks
        self._micro_batch_size = micro_batch_size
        self._clip_norm = clip_norm
        self._progress = progress
        self._before_update = before_update
        self._clock = step_clock(ranks.device)
        self._loader = BatchLoader(task.examples, ranks.device)
        self._parameters = [optimizer_parameters(optimizer) for optimizer in self._optimizers]

    def run(self, step: int, indices: Indices, *, log_due: bool) -> StepResult:
        """Make step `step` (counted from 1) from the global batch `indices` (int64, shape (batch.size,)).

        Every rank gets the same `indices`, computes its own share, and makes the same update. No value is read from
        the device unless `health.on_nan` is `skip`. With `log_due` the gradient norm and the task's measures
        beside its loss are always computed.
        """
        self._learning_rates.set(step)
        marks = StepMarks(self._clock.mark())
        # W: examples or target tokens of the whole global batch. Every rank knows it without communication.
        weight = self._task.weight(indices)
        shares = micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_batch_size)
        batches = [self._load(share, indices) for share in shares]  # tensors of shape (micro-batch, ...)
        marks.loaded = self._clock.mark()

        self._zero_grad()
        if self._task.shares_mean:
            mark, size = partial(self._progress.mark, "forward"), self._micro_batch_size
            set_shared_mean(self._task, self._model, self._precision, self._ranks, indices, size, mark)
        losses: dict[str, torch.Tensor] = {}  # by name, fp32, shape ()
        measured: dict[str, torch.Tensor] = {}  # the same
        for number, (share, batch) in enumerate(zip(shares, batches, strict=True), start=1):
            # Gradients add up in `.grad`; they are summed over the ranks in the backward of the last micro-batch.
            with self._model.accumulating(last=number == len(shares)):
                forward_started = self._clock.mark()
                self._progress.mark("forward")
                parts, values = self._forward(batch, weight, indices, empty=not len(share), measures=log_due)
                marks.forwards.append((forward_started, self._clock.mark()))
                self._progress.mark("backward")
                # A single backward for all losses: a second backward would reduce the gradients again.
                self._backward(_total({name: self._precision.scale(part) for name, part in parts.items()}))
            _add(losses, parts)
            _add(measured, values)
        loss = _total(losses)
        marks.computed = self._clock.mark()

        self._progress.mark("update")
        self._before_update()
        marks.staged = self._clock.mark()
        for optimizer in self._optimizers:
            self._precision.unscale(optimizer)
        norm = self._clip_gradients() if log_due or self._clip_norm or self._guard.needs_norm else None
        if self._guard.allows_update(step, loss, norm):
            for optimizer in self._optimizers:
                self._precision.step(optimizer)
            self._precision.update()
        marks.updated = self._clock.mark()
        counts = len(indices), count_tokens(self._task, indices)
        return StepResult(step, *counts, loss=loss, losses=losses, measured=measured, grad_norm=norm, marks=marks)

    def _load(self, share: Indices, indices: Indices) -> Tensors:
        return self._loader.load(self._substitute(share, indices))

    def _substitute(self, share: Indices, indices: Indices) -> Indices:
        # A rank without an example computes another example with weight zero, to take part in every collective.
        # The micro-batch of the others has a single example then, since shares differ by at most one.
        return share if len(share) else indices[:1]

    def _forward(
        self, batch: Tensors, weight: float, indices: Indices, *, empty: bool, measures: bool
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return each named loss of a micro-batch divided by the global weight, and each measured value divided by its
        own, none unless the step `measures`: fp32, shape ()."""
        values: Mapping[str, torch.Tensor] = {}
        with self._precision.autocast():
            measured_loss = self._task.measured_loss(self._model.forward, batch) if measures else None
            if measured_loss is None:
                sums = task_losses(self._task, self._model.forward, batch)
            else:
                loss, values = measured_loss
                sums = {"": loss}
        weights = {name: self._task.metric_weight(name, indices) for name in values}
        factor = 0.0 if empty else 1.0
        measured = {name: value * (factor / weights[name]) for name, value in values.items() if weights[name]}
        parts = {name: loss / weight for name, loss in sums.items()}
        return {name: part * 0.0 for name, part in parts.items()} if empty else parts, measured

    def _backward(self, loss: torch.Tensor) -> None:
        divisor = self._model.gradient_divisor
        loss.backward(None if divisor == 1 else torch.full_like(loss, divisor))  # type: ignore[no-untyped-call]

    def _clip_gradients(self) -> torch.Tensor:
        """Return the 2-norm of all gradients, fp32, shape (). Clip each optimizer's gradients by their own norm."""
        norms = []
        for optimizer, parameters in zip(self._optimizers, self._parameters, strict=True):
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms.append(self._model.norm(gradients))
            if self._clip_norm:
                clip_gradients(optimizer, self._clip_norm, norms[-1])
        return norms[0] if len(norms) == 1 else torch.stack(norms).norm()

    def _zero_grad(self) -> None:
        # optimizer.zero_grad() does the same at ten times the cost, which a small step shows.
        for parameters in self._parameters:
            for parameter in parameters:
                parameter.grad = None

    @property
    def prefetches(self) -> bool:
        """Whether `prefetch` has an effect: on CUDA only."""
        return self._loader.enabled

    def prefetch(self, indices: Indices) -> None:
        """Load this rank's share of the next global batch while the device computes the current step."""
        shares = micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_batch_size)
        self._loader.prefetch([self._substitute(share, indices) for share in shares])

    def start_loaders(self, batches: Iterable[Indices], *, processes: int, seed: int) -> None:
        """Let other processes prepare this rank's share of the global `batches`, a batch for each step to come."""
        order = (
            self._substitute(share, indices)
            for indices in batches
            for share in micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_batch_size)
        )
        self._loader.start_processes(order, processes=processes, seed=seed)

    def end_loaders(self) -> None:
        """End these processes."""
        self._loader.close()

    def warm_up(self, indices: Indices) -> None:
        """Do a forward and backward of this rank's first micro-batch with zero loss, and check the task's losses. The
        buffers, such as batch statistics, keep their values.

        DDP reorders its buckets after the first backward of every start. Without this a resumed run would sum its first
        gradients in another order than the uninterrupted run did. Compiled blocks specialise on the shapes that the
        steps will have.

        Raises:
            RefusedError: the task returns unusable losses.
        """
        first, *_ = micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_batch_size)
        batch = self._task.examples.train_batch(self._substitute(first, indices), self._ranks.device)
        with preserve_buffers(self._model.module):
            with self._precision.autocast():
                losses = task_losses(self._task, self._model.forward, batch)
            check_losses(losses)
            (_total(losses) * 0.0).backward()  # type: ignore[no-untyped-call]
        self._zero_grad()

    def dry_run(self, indices: Indices) -> None:
        """Do a forward and backward of these examples as one micro-batch, and drop the gradients. Where every rank
        holds the whole model, there is no communication.

        Raises:
            RefusedError: the task returns unusable losses.
        """
        try:
            batch = self._task.examples.train_batch(indices, self._ranks.device)
            with self._precision.autocast():
                losses = task_losses(self._task, self._model.dry_run_module, batch)
            check_losses(losses)
            (_total(losses) * 0.0).backward()  # type: ignore[no-untyped-call]
        finally:
            self._zero_grad()

    def set_micro_batch_size(self, size: int) -> None:
        self._micro_batch_size = size

    def micro_batch_length(self, examples: int) -> int:
        """Return the number of examples that a rank computes at once of a global batch with that many `examples`."""
        return micro_batch_length(examples, self._ranks.world, self._micro_batch_size)


def task_losses(task: Task, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
    """Return the task's losses by name, each summed over the batch: fp32, shape (). A single loss has an empty name.

    Raises:
        TrainingError: the model has batch normalization, and the batch has a single example.
    """
    try:
        return task.losses(model, batch) or {"": task.loss_sum(model, batch)}
    except ValueError as error:
        if _ONE_VALUE not in str(error):
            raise
        hint = "Choose batch.size and batch.micro_size so that each has at least 2, and set batch.last to drop."
        raise TrainingError("batch normalization cannot train on a micro-batch of 1 example", hint) from error


def _add(sums: dict[str, torch.Tensor], parts: Mapping[str, torch.Tensor]) -> None:
    for name, part in parts.items():
        sums[name] = sums[name] + part.detach() if name in sums else part.detach()


def _total(losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
    first, *rest = losses.values()
    return sum(rest, start=first)
