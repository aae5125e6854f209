"""One update: micro-batches forward and backward, unscale, clip, optimizer."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from worker.beats import Pulse
from worker.data.prefetch import Loader
from worker.data.sampler import Indices, micro_batches
from worker.distributed import Ranks
from worker.engine.model import ParallelModel
from worker.engine.precision import Precision
from worker.health import NonFinite
from worker.tasks.base import Task, Tensors


@dataclass(frozen=True)
class StepResult:
    """What came of an update. Tensors stay on the device until someone logs them."""

    loss: torch.Tensor
    """This rank's part of the global loss: the parts add up to it."""
    grad_norm: torch.Tensor | None
    data_seconds: float
    forward_seconds: float
    forward_backward_seconds: float
    optimizer_seconds: float


class Stepper:
    """Makes updates. The loss is a sum divided by the weight of the whole global batch, on every rank alike."""

    def __init__(
        self,
        task: Task,
        model: ParallelModel,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        health: NonFinite,
        ranks: Ranks,
        *,
        micro_size: int | None,
        clip_norm: float | None,
        pulse: Pulse,
    ) -> None:
        self._task = task
        self._model = model
        self._optimizer = optimizer
        self._precision = precision
        self._health = health
        self._ranks = ranks
        self._micro_size = micro_size
        self._clip_norm = clip_norm
        self._pulse = pulse
        self._loader = Loader(task.examples, ranks.device)
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]

    def warm_up(self, indices: Indices) -> None:
        """A forward and backward of zero loss. DDP orders its buckets anew after the first one, at every start: without
        this a resumed run would sum its first gradients in another order than the undisturbed one did."""
        batch = self._task.examples.train_batch(indices[:1], self._ranks.device)
        with self._precision.autocast():
            loss = self._task.loss_sum(self._model.forward, batch)
        (loss * 0.0).backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad(set_to_none=True)

    def rehearse(self, indices: Indices) -> None:
        """A forward and backward of these examples in one piece, without an update; no gradient is left. Where the
        model is whole on each rank, nothing is communicated."""
        try:
            batch = self._task.examples.train_batch(indices, self._ranks.device)
            with self._precision.autocast():
                loss = self._task.loss_sum(self._model.rehearsed, batch)
            (loss * 0.0).backward()  # type: ignore[no-untyped-call]
        finally:
            self._optimizer.zero_grad(set_to_none=True)

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
        loss, forward_seconds = self._accumulate(pieces, batches, weight)
        summed = time.perf_counter()
        norm = self._update(step, loss, norm_wanted=norm_wanted)
        ended = time.perf_counter()
        return StepResult(
            loss=loss,
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

    def _accumulate(self, pieces: list[Indices], batches: list[Tensors], weight: float) -> tuple[torch.Tensor, float]:
        total = torch.zeros((), device=self._ranks.device)
        forward_seconds = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for place, (piece, batch) in enumerate(zip(pieces, batches, strict=True)):
            with self._model.accumulating(last=place == len(pieces) - 1):
                started = time.perf_counter()
                self._pulse.mark("forward")
                with self._precision.autocast():
                    loss = self._task.loss_sum(self._model.forward, batch) / weight
                if not len(piece):
                    loss = loss * 0.0
                forward_seconds += time.perf_counter() - started
                self._pulse.mark("backward")
                self._precision.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total, forward_seconds

    def _update(self, step: int, loss: torch.Tensor, *, norm_wanted: bool) -> torch.Tensor | None:
        self._pulse.mark("update")
        self._precision.unscale(self._optimizer)
        norm = self._norm() if norm_wanted or self._clip_norm or self._health.needs_norm else None
        if self._health.allows(step, loss, norm):
            self._precision.step(self._optimizer)
        return norm

    def _norm(self) -> torch.Tensor:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = self._model.norm(gradients)
        if self._clip_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        return norm
