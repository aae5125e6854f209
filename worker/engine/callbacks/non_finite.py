"""Losses and gradients that are not numbers: found without waiting for the device, and dealt with as the spec says."""

import math
from typing import Literal

import torch

from worker.core.distributed import Ranks
from worker.core.errors import TrainingError
from worker.engine.precision import Precision

_NEVER = 2**62
_AT_ONCE = 64
"""Updates whose losses are looked at together."""
_HINT = (
    "Lower optimizer.lr, lengthen schedule.warmup_steps, set optimizer.clip_norm, or look at the data of that step. "
    "health.on_nan: skip leaves such steps out."
)


class NonFinite:
    """The policy `on_nan`. `skip` asks every step and so waits for the device; `stop` only remembers where it began.

    With fp16 an infinity is how the scaler finds its scale: it skips and halves by itself, and only where no scale is
    left to halve is the loss taken to be broken.
    """

    def __init__(
        self, policy: Literal["stop", "skip", "ignore"], precision: Precision, ranks: Ranks, skipped: int = 0
    ) -> None:
        self._policy = policy
        self._scaled = precision.scaler
        self._ranks = ranks
        self._first_bad = torch.tensor(_NEVER, dtype=torch.int64, device=ranks.device)
        self._unseen: list[torch.Tensor] = []
        """One for each of the latest updates, not finite where its loss or norm was not."""
        self._skipped = torch.zeros((), dtype=torch.int64, device=ranks.device)
        self.needs_norm = policy == "skip" or self._scaled is not None

    @property
    def counts_skips(self) -> bool:
        return self._scaled is not None or self._policy == "skip"

    @property
    def skipped(self) -> int:
        """Steps without an update so far. Waits for the device."""
        return int(self._skipped.item())

    def restore(self, skipped: int) -> None:
        self._skipped.fill_(skipped)

    def allows(self, step: int, loss: torch.Tensor, norm: torch.Tensor | None) -> bool:
        """Whether the optimizer may make this step; takes note of what it saw. A collective under `skip`."""
        both = loss if norm is None else loss + norm.to(loss.device, non_blocking=True)
        if self._scaled is not None:
            self._skipped += ~torch.isfinite(both)
        elif self._policy == "skip":
            refused = self._ranks.any(not math.isfinite(both.item()))
            self._skipped += refused
            return not refused
        elif self._policy == "stop":
            self._unseen.append(both)
            if len(self._unseen) == _AT_ONCE:
                self._look(step)
        return True

    def _look(self, step: int) -> None:
        """At the updates up to this one, all at once: one by one it would cost a small step a fiftieth of its time."""
        first = step + 1 - len(self._unseen)
        steps = torch.arange(first, step + 1, device=self._first_bad.device)
        finite = torch.isfinite(torch.stack(self._unseen))
        self._first_bad = torch.minimum(self._first_bad, steps.masked_fill(finite, _NEVER).min())
        self._unseen.clear()

    def check_trained(self, steps: int) -> None:
        """At the end of a run of so many steps. Waits for the device.

        Raises:
            TrainingError: every single update was skipped, so that nothing was trained.
        """
        if self.counts_skips and 0 < steps <= self.skipped:
            raise TrainingError(
                f"every one of the {steps} updates was skipped: no gradient was finite, and nothing was trained",
                "Lower amp.init_scale for fp16, or look for what makes the loss infinite.",
            )

    def check(self, step: int) -> None:
        """After this update: end the run where the policy says so, on all ranks alike.

        Waits for the device; a collective.

        Raises:
            TrainingError: naming the step where it began.
        """
        if self._policy != "stop":
            return
        if self._scaled is not None:
            if self._scaled.get_scale() < 2.0**-10:
                message = f"the loss is not finite at any scale ({self.skipped} steps were skipped)"
                raise TrainingError(message, _HINT)
            return
        if self._unseen:
            self._look(step)
        first = int(min(row[0] for row in self._ranks.gather([float(self._first_bad.item())])))
        if first < _NEVER:
            raise TrainingError(f"the loss became NaN or infinite at step {first}", _HINT)
