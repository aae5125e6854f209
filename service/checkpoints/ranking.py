"""Selection of a job's best checkpoint. Pure functions."""

import math
from collections.abc import Iterable
from typing import Any

from trainyard.contract.spec.sections import KeepBest


def best_criterion(policy: dict[str, Any] | None) -> KeepBest:
    """Return the criterion of a spec's `checkpoint.keep_best`, by default the lowest evaluation loss."""
    return KeepBest.model_validate(policy) if policy else KeepBest()


def best_step(values: Iterable[tuple[int, float]], criterion: KeepBest) -> int | None:
    """Return the step with the best value; if values are equal, the latest step. NaN never counts."""
    sign = 1.0 if criterion.mode == "max" else -1.0
    scored = [(sign * value, step) for step, value in values if not math.isnan(value)]
    return max(scored)[1] if scored else None
