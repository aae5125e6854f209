"""One update: micro-batches forward and backward, unscale, clip, optimizer."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.data.examples import Tensors
from worker.data.prefetch import BatchLoader
from worker.data.sampler import Indices, micro_batches
from worker.engine.callbacks.non_finite import NonFinite
from worker.engine.optim import optimizer_parameters
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.tasks.base import Task, check_losses


@dataclass(frozen=True)
class StepResult:
    """What came of an update. Tensors stay on the device until someone logs them."""

    loss: torch.Tensor
    """This rank's part of the global loss: the parts add up to it."""
    losses: dict[str, torch.Tensor]
    """This rank's part of each of a task's several losses."""
    grad_norm: torch.Tensor | None
    data_seconds: float
    forward_seconds: float
    forward_backward_seconds: float
    optimizer_seconds: float


class TrainStep:
    """Makes updates. The loss is a sum divided by the weight of the whole global batch, on every rank alike."""

    def __init__(
        self,
        task: Task,
        model: ParallelModel,
        optimizers: Mapping[str, torch.optim.Optimizer],
        precision: Precision,
        health: NonFinite,
        ranks: Ranks,
        *,
        micro_size: int | None,
        clip_norm: float | None,
        pulse: ProgressCounter,
    ) -> None:
        self._task = task
        self._model = model
        self._optimizers = list(optimizers.values())
        self._precision = precision
        self._health = health
        self._ranks = ranks
        self._micro_size = micro_size
        self._clip_norm = clip_norm
        self._pulse = pulse
        self._loader = BatchLoader(task.examples, ranks.device)
        self._parameters = [optimizer_parameters(optimizer) for optimizer in self._optimizers]

    def warm_up(self, indices: Indices) -> None:
        """A forward and backward of zero loss. DDP orders its buckets anew after the first one, at every start: without
        this a resumed run would sum its first gradients in another order than the undisturbed one did."""
        batch = self._task.examples.train_batch(indices[:1], self._ranks.device)
        with self._precision.autocast():
            losses = task_losses(self._task, self._model.forward, batch)
        check_losses(losses)
        (_sum(losses) * 0.0).backward()  # type: ignore[no-untyped-call]
        self._forget_gradients()

    def dry_run(self, indices: Indices) -> None:
        """A forward and backward of these examples in one piece, without an update; no gradient is left. Where the
        model is whole on each rank, nothing is communicated."""
        try:
            batch = self._task.examples.train_batch(indices, self._ranks.device)
            with self._precision.autocast():
                losses = task_losses(self._task, self._model.dry_run_module, batch)
            (_sum(losses) * 0.0).backward()  # type: ignore[no-untyped-call]
        finally:
            self._forget_gradients()

    def settle(self, micro_size: int) -> None:
        """From now on compute so many examples at once."""
        self._micro_size = micro_size

    def run(self, step: int, indices: Indices, *, norm_wanted: bool) -> StepResult:
        """The update number `step` from this global batch."""
        started = time.perf_counter()
        weight = self._task.weight(indices)
        pieces = micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_size)
        batches = [self._load(piece, indices) for piece in pieces]
        loaded = time.perf_counter()
        losses, forward_seconds = self._accumulate(pieces, batches, weight)
        loss = _sum(losses)
        summed = time.perf_counter()
        norm = self._update(step, loss, norm_wanted=norm_wanted)
        ended = time.perf_counter()
        return StepResult(
            loss=loss,
            losses=losses,
            grad_norm=norm,
            data_seconds=loaded - started,
            forward_seconds=forward_seconds,
            forward_backward_seconds=summed - loaded,
            optimizer_seconds=ended - summed,
        )

    def _load(self, piece: Indices, indices: Indices) -> Tensors:
        # A rank without an example computes one of weight zero, so that every rank takes part in every collective.
        return self._loader.load(piece if len(piece) else indices[:1])

    @property
    def loads_ahead(self) -> bool:
        """Whether `load_ahead` gains anything here."""
        return self._loader.enabled

    def load_ahead(self, indices: Indices) -> None:
        """Gather the next update's batches while the device computes this one."""
        pieces = micro_batches(indices, self._ranks.rank, self._ranks.world, self._micro_size)
        self._loader.ahead([piece if len(piece) else indices[:1] for piece in pieces])

    def _accumulate(
        self, pieces: list[Indices], batches: list[Tensors], weight: float
    ) -> tuple[dict[str, torch.Tensor], float]:
        totals: dict[str, torch.Tensor] = {}
        forward_seconds = 0.0
        self._forget_gradients()
        for place, (piece, batch) in enumerate(zip(pieces, batches, strict=True)):
            with self._model.accumulating(last=place == len(pieces) - 1):
                started = time.perf_counter()
                self._pulse.mark("forward")
                with self._precision.autocast():
                    found = task_losses(self._task, self._model.forward, batch)
                losses = {name: loss / weight for name, loss in found.items()}
                if not len(piece):
                    losses = {name: loss * 0.0 for name, loss in losses.items()}
                forward_seconds += time.perf_counter() - started
                # One pass for all losses, each with the one scale: a second one would reduce the gradients again.
                self._pulse.mark("backward")
                _sum({name: self._precision.scale(loss) for name, loss in losses.items()}).backward()  # type: ignore[no-untyped-call]
            for name, loss in losses.items():
                totals[name] = totals[name] + loss.detach() if name in totals else loss.detach()
        return totals, forward_seconds

    def _forget_gradients(self) -> None:
        # zero_grad does the same at ten times the cost, which a small step feels.
        for parameters in self._parameters:
            for parameter in parameters:
                parameter.grad = None

    def _update(self, step: int, loss: torch.Tensor, *, norm_wanted: bool) -> torch.Tensor | None:
        self._pulse.mark("update")
        for optimizer in self._optimizers:
            self._precision.unscale(optimizer)
        norm = self._clip() if norm_wanted or self._clip_norm or self._health.needs_norm else None
        if self._health.allows(step, loss, norm):
            for optimizer in self._optimizers:
                self._precision.step(optimizer)
            self._precision.update()
        return norm

    def _clip(self) -> torch.Tensor:
        """Each optimizer's gradients on their own; the norm of all of them before that."""
        norms = [self._norm(parameters) for parameters in self._parameters]
        return norms[0] if len(norms) == 1 else torch.stack(norms).norm()

    def _norm(self, parameters: list[nn.Parameter]) -> torch.Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self._model.norm(gradients)
        if self._clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        return norm


def task_losses(task: Task, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
    """The task's losses summed over the batch: by name where it has several."""
    several = getattr(task, "losses", None)
    return (several(model, batch) if several else None) or {"": task.loss_sum(model, batch)}


def _sum(losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
    first, *rest = losses.values()
    return sum(rest, start=first)
