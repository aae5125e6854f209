"""Estimates a run's remaining time from its earlier steps, evaluations and checkpoints. Pure functions."""

import math

_RECENT = 0.5
"""The weight of the newest duration."""
_FORWARD_SHARE = 1 / 3
"""The part of a training step that an evaluation of as many examples takes: it has no backward pass."""


class MeanSeconds:
    """The mean of durations; newer durations weigh more."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, seconds: float) -> None:
        self.value = seconds if self.value is None else (1 - _RECENT) * self.value + _RECENT * seconds


def occurrences(after: int, total: int, every: int | None) -> int:
    """Return how often something is due after a step and up to the last: at each multiple, and at the last step."""
    if after >= total:
        return 0
    if every is None:
        return 1
    return total // every - after // every + (total % every != 0)


def evaluation_estimate(examples: int, batch_size: int, step_seconds: float) -> float:
    """Return the expected seconds of an evaluation, before any was measured."""
    return examples / max(1, batch_size) * step_seconds * _FORWARD_SHARE


def seconds_left(
    *,
    steps: int,
    step_seconds: float,
    evaluations: int,
    evaluation_seconds: float,
    saves: int,
    save_seconds: float,
    current: float = 0.0,
) -> float | None:
    """Return the seconds to the end of the last step, evaluation and checkpoint; None if they are not finite.

    Args:
        current: Seconds that the present evaluation or checkpoint will still take.
    """
    left = current + max(0, steps) * step_seconds + evaluations * evaluation_seconds + saves * save_seconds
    return left if math.isfinite(left) and left >= 0 else None
