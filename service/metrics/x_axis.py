"""What a curve is drawn over besides steps: seconds of training, or tokens. Pure.

Seconds of training leave out what differs between two runs of one spec for reasons of the cluster: waiting in the
queue, starting up, gaps between executions, and work that a later execution did again. Each execution's clock begins
at the step that it resumed from, where the one before it had come to; what passed before its first point is taken to
have gone at its own pace.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from service.core.errors import ConflictError

_MICROS = 1e6
_SPEED, _EXAMPLES = "perf/tokens_per_second", "perf/examples_per_second"


class Placed(NamedTuple):
    """Where a point lies; the time is in microseconds."""

    step: int
    time: int


class Stretch(NamedTuple):
    """What is seen of one execution: the step that it resumed from, and its first and last point."""

    execution: int
    resumed: int
    first: Placed
    last: Placed


class Axis(Protocol):
    """Says where a point lies on it; None where it does not."""

    def __call__(self, step: int, execution: int, time: int) -> float | None: ...


def training_seconds(stretches: Iterable[Stretch]) -> Axis:
    """Seconds of training before a point.

    Args:
        stretches: In order of execution.
    """
    zero: dict[int, float] = {}
    spent, pace, step = 0.0, 0.0, 0
    for one in stretches:
        # The one before may have come to its last checkpoint after its last point.
        spent += pace * max(0, one.resumed - step)
        steps, micros = one.last.step - one.first.step, one.last.time - one.first.time
        pace = max(0.0, micros / steps) if steps else pace
        before = pace * max(0, one.first.step - one.resumed)
        zero[one.execution] = one.first.time - spent - before
        spent += before + max(0, micros)
        step = one.last.step

    def seconds(step: int, execution: int, time: int) -> float | None:
        start = zero.get(execution)
        return None if start is None else round(max(0.0, time - start) / _MICROS, 3)

    return seconds


def tokens_seen(job_id: str, spec: Mapping[str, Any], latest: Mapping[str, Any]) -> Axis:
    """Tokens before a point: an update's examples, by the mean length of a row, which the worker's speeds tell.

    The short batch at an epoch's end (`batch.last: keep`) counts as a whole one.

    Raises:
        ConflictError: the job does not train on tokens.
    """
    speed, examples = _number(latest.get(_SPEED)), _number(latest.get(_EXAMPLES))
    if speed and examples:
        each = round(speed / examples) * int(spec["batch"]["size"])
        return lambda step, execution, time: float(step * each)
    if spec["task"] != "causal_lm":
        message = f"job {job_id} counts no tokens: `{spec['task']}` trains on examples; use `step` or `time`"
        raise ConflictError(message, param="x", code="no_tokens")
    return lambda step, execution, time: None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
