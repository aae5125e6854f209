"""The step of a tracker's point, and the step from which an execution resumed. Pure functions of the known points."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.wire.reports import UNKNOWN_STEP

_SAME_UNIT = 0.5
"""A metric whose steps reach this part of the job's highest step counts the same thing as the job's steps."""


@dataclass(frozen=True)
class MetricHistory:
    """The points of a metric that earlier executions logged."""

    last_step: int
    resumes_at: int
    """The step after the last point that was logged before the newest checkpoint was written."""
    latest_step: int = -1
    """The step of the point that was logged last."""
    latest_at: float = 0.0
    """When the last point was logged, in seconds since 1970."""

    def joined(self, other: "MetricHistory") -> "MetricHistory":
        """Return the history with the points of both."""
        latest_at, latest_step = max((self.latest_at, self.latest_step), (other.latest_at, other.latest_step))
        last_step, resumes_at = max(self.last_step, other.last_step), max(self.resumes_at, other.resumes_at)
        return MetricHistory(last_step, resumes_at, latest_step, latest_at)


@dataclass
class ExecutionSteps:
    """Assigns steps to the points of one execution, in the order in which they arrive."""

    execution: int
    history: Mapping[str, MetricHistory] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    """Metrics for which the program gives no steps, so that their points are counted."""
    counted_changed: bool = False
    resumed_from: int = field(init=False)
    highest: int = 0
    """The highest step of this execution; 0 before the first point."""
    _last: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resumed_from = 0 if self.execution == 1 else UNKNOWN_STEP

    def assign(self, name: str, step: int | None, *, counts_zeros: bool = True) -> int:
        """Return the step of the next point of a metric.

        Args:
            step: The step that the tracker sent; None: the program gave no step.
            counts_zeros: Whether the tracker sends 0 if the program gives no step, as MLflow and TensorBoard do. A
                second consecutive 0 of a metric then means that there is no step.
        """
        last = self._last.get(name)
        if step is not None and (step != 0 or not counts_zeros):
            self._set_counted(name, is_counted=False)
        elif step is None or last == 0:
            self._set_counted(name, is_counted=True)
        if name in self.counted or step is None:
            step = last + 1 if last is not None else self._first_count(name)
        assigned = min(step, MAX_SAFE_INT)
        self._last[name] = max(assigned, last or 0)
        self.highest = max(self.highest, assigned)
        self._note_start(name, assigned)
        return assigned

    def may_count(self, name: str) -> bool:
        """Return whether a 0 that the tracker sends for the metric may mean that the program gives no steps."""
        return name in self.counted or not self._last.get(name)

    def restart(self, name: str) -> None:
        """Forget the steps of a metric whose curve is written again."""
        self._last.pop(name, None)
        self._set_counted(name, is_counted=False)

    def _set_counted(self, name: str, *, is_counted: bool) -> None:
        if is_counted != (name in self.counted):
            self.counted ^= {name}
            self.counted_changed = True

    def _first_count(self, name: str) -> int:
        known = self.history.get(name)
        return known.resumes_at if known else 0

    def _note_start(self, name: str, step: int) -> None:
        """Take the first point of a metric that counts the job's steps as the start of this execution."""
        if self.resumed_from != UNKNOWN_STEP:
            return
        longest = max((one.last_step for one in self.history.values()), default=0)
        known = self.history.get(name)
        if longest == 0 or (known is not None and known.last_step >= longest * _SAME_UNIT):
            self.resumed_from = max(0, step - 1)
