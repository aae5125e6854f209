"""Runs of a program as MLflow's client reads them back, and the points of their metrics."""

import math
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainyard.contract.mlflow_filter import Kind, Value
from worker.trackers.tracker_requests import TrackerError

Document = dict[str, Any]

MAX_HISTORY_POINTS = 1_000_000
"""Points of all histories of a launcher: 24 bytes each."""
_HISTORY_COST = 20
"""How many points take as much memory as a history without points."""
RUN_NAME = "mlflow.runName"
_USER = "mlflow.user"


class MetricPoint(NamedTuple):
    """A point as the program gave it."""

    value: float
    step: int
    time: int
    """The time in milliseconds since 1970."""

    @property
    def order(self) -> tuple[int, float]:
        """If a step has several points, MLflow shows the latest, then the highest."""
        return self.time, 0.0 if math.isnan(self.value) else self.value

    def document(self, key: str) -> Document:
        return {"key": key, "value": _json_value(self.value), "step": self.step, "timestamp": self.time}


@dataclass
class Run:
    """A run of the program."""

    run_id: str
    experiment_id: str
    name: str
    prefix: str
    start_time: int
    is_continued: bool = False
    """Whether this launcher did not create it: an earlier attempt may have logged to it."""
    status: str = "RUNNING"
    end_time: int = 0
    parameters: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The execution that logged a parameter, and the value."""
    metrics: dict[str, MetricPoint] = field(default_factory=dict)
    """The point of the highest step; among several, the last in MLflow's order."""
    tags: dict[str, str] = field(default_factory=dict)

    def info(self) -> Document:
        info = {
            "run_id": self.run_id,
            "run_uuid": self.run_id,
            "run_name": self.name,
            "experiment_id": self.experiment_id,
            "user_id": self.tags.get(_USER, ""),
            "status": self.status,
            "start_time": self.start_time,
            "artifact_uri": f"mlflow-artifacts:/{self.experiment_id}/{self.run_id}/artifacts",
            "lifecycle_stage": "active",
        }
        return info | ({"end_time": self.end_time} if self.end_time else {})

    def document(self) -> Document:
        data = {
            "metrics": [point.document(key) for key, point in dict(self.metrics).items()],
            "params": [{"key": key, "value": value} for key, (_, value) in dict(self.parameters).items()],
            "tags": [{"key": key, "value": value} for key, value in dict(self.tags).items()],
        }
        return {"info": self.info(), "data": data}

    def value(self, kind: Kind, key: str) -> Value:
        """Return the value that a search compares; None if the run does not have it."""
        if kind == "metric":
            return self.metrics[key].value if key in self.metrics else None
        if kind == "param":
            return self.parameters[key][1] if key in self.parameters else None
        if kind == "tag":
            return self.tags.get(key)
        value: Value = self.info().get(key)
        return value

    def add_point(self, key: str, point: MetricPoint) -> None:
        latest = self.metrics.get(key)
        if latest is None or (point.step, point.order) >= (latest.step, latest.order):
            self.metrics[key] = point

    def set_parameters(self, execution: int, given: Mapping[str, str]) -> None:
        """Set parameters, which do not change within an execution; a restarted program may log other values.

        Raises:
            TrackerError: A parameter already has another value. No parameter is set.
        """
        for key, value in given.items():
            known = self.parameters.get(key)
            if known is not None and known[0] == execution and known[1] != value:
                message = (
                    f"Changing param values is not allowed. Param with key='{key[:200]}' was already logged with "
                    f"value='{known[1][:200]}' for run ID='{self.run_id}'. Attempted logging new value '{value[:200]}'."
                )
                raise TrackerError(400, "INVALID_PARAMETER_VALUE", message)
        self.parameters.update({key: (execution, value) for key, value in given.items()})


class _History:
    """The points of one metric, in the order in which they were logged."""

    def __init__(self) -> None:
        self.values, self.steps, self.times = array("d"), array("q"), array("q")
        self._is_ordered = True
        """Whether the times never decrease. This holds while the client's clock gives the times."""
        self._identities: set[tuple[int, int, bytes]] | None = None
        """The identities of all points, once the points are not ordered and a point was looked up."""
        self._execution = 0
        self._begin = 0
        """The first point of the newest execution."""
        self._newest: dict[int, tuple[int, float]] | None = None
        """The highest order at each step of this execution, once the points are not ordered."""

    def __len__(self) -> int:
        return len(self.values)

    def point(self, index: int) -> MetricPoint:
        return MetricPoint(self.values[index], self.steps[index], self.times[index])

    def append(self, execution: int, point: MetricPoint) -> bool:
        """Add a point; return whether the execution has already logged a point with a later time."""
        if execution != self._execution:
            self._execution, self._begin, self._newest = execution, len(self), None
        is_late = len(self) > self._begin and point.time < self.times[-1]
        self._is_ordered = self._is_ordered and (not self.times or self.times[-1] <= point.time)
        if self._identities is not None:
            self._identities.add(_identity(point))
        if self._newest is not None:
            self._newest[point.step] = max(point.order, self._newest.get(point.step, point.order))
        self.values.append(point.value)
        self.steps.append(point.step)
        self.times.append(point.time)
        return is_late

    def by_time(self) -> tuple[int, list[MetricPoint]]:
        """Return the newest execution and its points in the order of their times, or none if they have steps."""
        points = [self.point(index) for index in range(self._begin, len(self))]
        are_counted = not any(point.step for point in points)
        return self._execution, sorted(points, key=lambda point: point.time) if are_counted else []

    def __contains__(self, point: MetricPoint) -> bool:
        if not self._is_ordered:
            if self._identities is None:
                self._identities = {_identity(self.point(index)) for index in range(len(self))}
            return _identity(point) in self._identities
        first, end = bisect_left(self.times, point.time), bisect_right(self.times, point.time)
        return any(_identity(self.point(index)) == _identity(point) for index in range(first, end))

    def has_later(self, execution: int, point: MetricPoint) -> bool:
        """Return whether the execution has logged a point of this step that is later in MLflow's order."""
        if execution != self._execution:
            return False
        if self._is_ordered:
            first = max(self._begin, bisect_left(self.times, point.time))
            later = (self.point(index) for index in range(first, len(self)) if self.steps[index] == point.step)
            return any(one.order > point.order for one in later)
        if self._newest is None:
            self._newest = {}
            for one in map(self.point, range(self._begin, len(self))):
                self._newest[one.step] = max(one.order, self._newest.get(one.step, one.order))
        return self._newest.get(point.step, point.order) > point.order


def _identity(point: MetricPoint) -> tuple[int, int, bytes]:
    """Return a key that distinguishes points of a metric, as on a server of MLflow. NaN equals itself."""
    return point.step, point.time, struct.pack("d", point.value)


class PointHistories:
    """The histories of all metrics. If they have too many points, the longest is forgotten, and cannot be read."""

    def __init__(self, limit: int = MAX_HISTORY_POINTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._size = 0
        self._histories: dict[tuple[str, str], _History | None] = {}
        """The histories by run and metric; None: forgotten."""
        self._late: set[tuple[str, str]] = set()
        """Run and metric of histories in which a point follows a point with a later time."""

    def has(self, run_id: str, key: str, point: MetricPoint) -> bool | None:
        """Return whether the metric's history has a point; None if the history was forgotten."""
        with self._lock:
            history = self._histories.get((run_id, key), _History())
            return None if history is None else point in history

    def has_later(self, run_id: str, key: str, execution: int, point: MetricPoint) -> bool:
        """Return whether the step keeps a value that the execution has logged before, as on a server of MLflow.

        False if the points were forgotten.
        """
        with self._lock:
            history = self._histories.get((run_id, key))
            return history is not None and history.has_later(execution, point)

    def add(self, run_id: str, key: str, execution: int, point: MetricPoint) -> None:
        """Append a point."""
        with self._lock:
            if (run_id, key) not in self._histories:
                self._histories[run_id, key] = _History()
                self._size += _HISTORY_COST
            history = self._histories[run_id, key]
            if history is None:
                return
            if history.append(execution, point):
                self._late.add((run_id, key))
            self._size += 1
            if self._size > self._limit:
                self._forget_longest()

    def _forget_longest(self) -> None:
        histories = [(len(history), name) for name, history in self._histories.items() if history is not None]
        length, name = max(histories)
        self._histories[name] = None
        self._size -= length + _HISTORY_COST

    def take_late(self, running: int) -> list[tuple[str, str, int, list[MetricPoint]]]:
        """Return run, metric, execution and points by time of metrics without steps whose points came out of order.

        Each metric is returned once, after its execution has ended.
        """
        taken = []
        with self._lock:
            for run_id, key in list(self._late):
                history = self._histories[run_id, key]
                execution, points = history.by_time() if history else (0, [])
                if execution != running:
                    self._late.remove((run_id, key))
                    taken.append((run_id, key, execution, points))
        return [one for one in taken if one[3]]

    def read(self, run_id: str, key: str, start: int, end: int) -> tuple[list[MetricPoint], bool]:
        """Return the points of a metric from one position to another, and whether more follow.

        Raises:
            TrackerError: The points were forgotten.
        """
        with self._lock:
            history = self._histories.get((run_id, key), _History())
            if history is None:
                message = (
                    f"the history of {key[:200]!r} cannot be read within the program: Trainyard keeps {self._limit:,} "
                    "points for this, and has forgotten the longest histories; the job's curves have all points"
                )
                raise TrackerError(400, "RESOURCE_EXHAUSTED", message)
            return [history.point(index) for index in range(start, min(end, len(history)))], end < len(history)


def _json_value(value: float) -> float | str:
    """Return a value as JSON. Numbers that are not finite become texts, which the client accepts."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
