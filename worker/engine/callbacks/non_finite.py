"""Detects losses and gradients that are NaN or infinite, without waiting for the device in every step."""

import math
from collections.abc import Callable
from typing import Literal

import torch

from worker.core.distributed import Ranks
from worker.core.errors import DivergedError, TrainingError
from worker.engine.callbacks.base import Callback, StepResult
from worker.engine.precision import Precision
from worker.engine.step_sync import Rows, StepSync

_NO_STEP = 2**62
_STEPS_PER_CHECK = 64
"""Steps whose values are checked in one kernel; checking each step by itself costs a small step 2 % of its time."""
_MIN_SCALE = 2.0**-10
_HINT = (
    "Lower optimizer.lr, raise schedule.warmup_steps, set optimizer.clip_norm, or inspect the data of that step. "
    "Or set `health.on_nan: skip` to skip such steps."
)


class NonFiniteGuard(Callback):
    """Applies `health.on_nan`: `skip` checks every step and so waits for the device; `stop` records the first bad step
    on the device and reads it when metrics are logged or a checkpoint is written; `ignore` does nothing.

    With fp16, infinite gradients are part of dynamic loss scaling (arXiv:1710.03740, section 3.2): the scaler skips the
    step and halves the scale. Only a scale below 2^-10 ends the run.

    Infinite gradients are detected by the gradient norm alone, which must therefore be measured before any clipping.
    """

    def __init__(
        self,
        policy: Literal["stop", "skip", "ignore"],
        precision: Precision,
        ranks: Ranks,
        step_sync: StepSync | None = None,
        check_due: Callable[[int], bool] = lambda step: False,
    ) -> None:
        """`check_due` returns whether to check after a step, with the values that the ranks gather there;
        `on_checkpoint_start` always checks."""
        self._policy = policy
        self._scaler = precision.scaler
        self._ranks = ranks
        self._step_sync = step_sync
        self._check_due = check_due
        self._first_bad = torch.tensor(_NO_STEP, dtype=torch.int64, device=ranks.device)
        self._unchecked: list[torch.Tensor] = []
        """A scalar for each of the latest steps; not finite where the loss or the norm was not."""
        self._skipped = torch.zeros((), dtype=torch.int64, device=ranks.device)
        self.needs_norm = policy == "skip" or self._scaler is not None

    @property
    def counts_skips(self) -> bool:
        return self._scaler is not None or self._policy == "skip"

    @property
    def skipped(self) -> int:
        """The number of steps without an update so far. Waits for the device."""
        return int(self._skipped.item())

    def restore(self, skipped: int) -> None:
        self._skipped.fill_(skipped)

    def allows_update(self, step: int, loss: torch.Tensor, norm: torch.Tensor | None) -> bool:
        """Return whether the optimizer may make this step, and record whether `loss` and `norm` (fp32 scalars) are
        finite. A collective under `skip`."""
        both = loss if norm is None else loss + norm.to(loss.device, non_blocking=True)
        if self._scaler is not None:
            self._skipped += ~torch.isfinite(both)
        elif self._policy == "skip":
            refused = self._ranks.any(not math.isfinite(both.item()))
            self._skipped += refused
            return not refused
        elif self._policy == "stop":
            self._unchecked.append(both)
            if len(self._unchecked) == _STEPS_PER_CHECK:
                self._find_first_bad(step)
        return True

    def on_step_end(self, result: StepResult) -> None:
        if self._check_due(result.step):
            self.queue_check(result.step)

    def on_checkpoint_start(self, step: int) -> None:
        self.check(step)

    def queue_check(self, step: int) -> None:
        """Check with the next gather. Waits for the device."""
        if self._step_sync and self._policy == "stop":
            self._step_sync.queue_gather([self._first_bad_step(step)], self._end_if_bad)

    def check(self, step: int) -> None:
        """End the run on all ranks if the policy is `stop` and this step or an earlier step was not finite.

        A collective that waits for the device.

        Raises:
            DivergedError: naming the first such step.
        """
        if self._policy == "stop":
            self._end_if_bad(self._ranks.gather([self._first_bad_step(step)]))

    def check_trained(self, steps: int) -> None:
        """Called when a run has done all its `steps`. Waits for the device.

        Raises:
            TrainingError: every update was skipped, so nothing was trained.
        """
        if self.counts_skips and 0 < steps <= self.skipped:
            raise TrainingError(
                f"every one of the {steps} updates was skipped: no gradient was finite, and nothing was trained",
                "Lower amp.init_scale for fp16, or find out why the loss is infinite.",
            )

    def _first_bad_step(self, step: int) -> float:
        """Return the first step that was not finite on this rank, up to this step; waits for the device."""
        # The sum, a single kernel, is finite only if all values are.
        if self._unchecked and not math.isfinite(torch.stack(self._unchecked).sum().item()):
            self._find_first_bad(step)
        self._unchecked.clear()
        return float(self._first_bad.item())

    def _end_if_bad(self, rows: Rows) -> None:
        """Raise DivergedError if a rank has a bad step, or if the loss scale is too small.

        The first bad step of each rank is its only value in `rows`.
        """
        if self._scaler is not None and self._scaler.get_scale() < _MIN_SCALE:
            message = f"the loss is not finite at any loss scale ({self.skipped} steps were skipped)"
            raise DivergedError(message, _HINT)
        first = int(min(row[0] for row in rows))
        if first < _NO_STEP:
            raise DivergedError(f"the loss became NaN or infinite at step {first}", _HINT)

    def _find_first_bad(self, step: int) -> None:
        first = step + 1 - len(self._unchecked)
        steps = torch.arange(first, step + 1, device=self._first_bad.device)
        finite = torch.isfinite(torch.stack(self._unchecked))
        self._first_bad = torch.minimum(self._first_bad, steps.masked_fill(finite, _NO_STEP).min())
        self._unchecked.clear()
