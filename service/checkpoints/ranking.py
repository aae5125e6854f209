"""Which of a job's checkpoints is the best. Pure."""

from collections.abc import Sequence
from typing import Any

from service.db.models import Checkpoint
from trainyard.contract.spec.sections import KeepBest


def best_of(kept: Sequence[Checkpoint], policy: dict[str, Any] | None) -> Checkpoint | None:
    """By the spec's `checkpoint.keep_best`, else by the evaluation loss; of equals the later, and never a NaN."""
    wanted = KeepBest.model_validate(policy) if policy else KeepBest()
    sign = 1.0 if wanted.mode == "max" else -1.0
    scored = [
        (sign * float(value), checkpoint.step, checkpoint)
        for checkpoint in kept
        if (value := checkpoint.metrics.get(wanted.metric)) is not None and value != "NaN"
    ]
    return max(scored, key=lambda one: one[:2])[2] if scored else None
