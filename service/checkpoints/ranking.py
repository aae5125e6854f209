"""Selection of a job's best checkpoint. Pure functions."""

from collections.abc import Sequence
from typing import Any

from service.db.models import Checkpoint
from trainyard.contract.spec.sections import KeepBest


def best_of(checkpoints: Sequence[Checkpoint], policy: dict[str, Any] | None) -> Checkpoint | None:
    """Return the best checkpoint by the spec's `checkpoint.keep_best`, by default the lowest evaluation loss.

    Of equal values the later checkpoint is returned; NaN never counts.
    """
    criterion = KeepBest.model_validate(policy) if policy else KeepBest()
    sign = 1.0 if criterion.mode == "max" else -1.0
    scored = [
        (sign * float(value), checkpoint.step, checkpoint)
        for checkpoint in checkpoints
        if (value := checkpoint.metrics.get(criterion.metric)) is not None and value != "NaN"
    ]
    return max(scored, key=lambda entry: entry[:2])[2] if scored else None
