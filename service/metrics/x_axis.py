"""The x-axes of curves other than steps: seconds of training, and tokens. Pure functions.

Seconds of training exclude differences between two runs of the same spec that the cluster causes: time in the queue,
startup, gaps between executions, and work that a later execution repeated. The clock of each execution starts at the
step that it resumed from, at the time that the execution before had reached there. The time before its first point is
estimated from its own time per step.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from service.core.errors import ConflictError
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.kinds.tasks import task_kind

_MICROS_PER_SECOND = 1e6
TOKENS = "train/tokens"
"""The metric with the tokens of all steps until then."""


class StepTime(NamedTuple):
    """A step and the time of its point in microseconds."""

    step: int
    time: int


class ExecutionSpan(NamedTuple):
    """The visible part of an execution: the step that it resumed from, and its first and last point."""

    execution: int
    resumed: int
    first: StepTime
    last: StepTime


class Axis(Protocol):
    """Returns the x-coordinate of a point, or None for a point that has none. The time is in microseconds."""

    def __call__(self, step: int, execution: int, time: int) -> float | None: ...


def training_seconds(spans: Iterable[ExecutionSpan]) -> Axis:
    """Return the axis of seconds of training.

    Args:
        spans: Ordered by execution.
    """
    start_times: dict[int, float] = {}
    elapsed, micros_per_step, last_step = 0.0, 0.0, 0
    for span in spans:
        # The execution before may have reached its last checkpoint after its last point.
        elapsed += micros_per_step * max(0, span.resumed - last_step)
        steps, micros = span.last.step - span.first.step, span.last.time - span.first.time
        micros_per_step = max(0.0, micros / steps) if steps else micros_per_step
        before_first = micros_per_step * max(0, span.first.step - span.resumed)
        start_times[span.execution] = span.first.time - elapsed - before_first
        elapsed += before_first + max(0, micros)
        last_step = span.last.step

    def seconds(step: int, execution: int, time: int) -> float | None:
        start = start_times.get(execution)
        return None if start is None else round(max(0.0, time - start) / _MICROS_PER_SECOND, 3)

    return seconds


def check_token_axis(job_id: str, spec: Mapping[str, Any], *, reported: bool) -> None:
    """Check that the job counts tokens: it has reported some, or will.

    Raises:
        ConflictError: The job does not train on tokens.
    """
    if not reported and not task_kind(spec["task"]).reads_texts:
        message = f"job {job_id} counts no tokens: `{spec['task']}` trains on examples; use `step` or `time`"
        raise ConflictError(message, param="x", code="no_tokens")


def token_axis(points: Iterable[tuple[int, float]]) -> Axis:
    """Return the axis of tokens, which interpolates between the reported numbers, and continues the last interval.

    Args:
        points: Steps and values of `TOKENS`, ordered by step. A worker may report any number.
    """
    steps, totals = [0], [0.0]
    for step, total in points:
        if step > steps[-1] and totals[-1] <= total <= MAX_SAFE_INT:
            steps.append(step)
            totals.append(total)

    def tokens(step: int, execution: int, time: int) -> float | None:
        if len(steps) == 1:
            return None
        end = min(max(1, bisect_left(steps, step)), len(steps) - 1)
        slope = (totals[end] - totals[end - 1]) / (steps[end] - steps[end - 1])
        return float(round(totals[end] + slope * (step - steps[end])))

    return tokens
