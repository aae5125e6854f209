"""The one writer of a node's tracker spool: it takes what all trackers report, from any thread."""

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainyard.contract.base import sanitize
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.metric_name import MAX_METRIC_NAME, allowed_name
from trainyard.contract.wire.media import MAX_MEDIA, MediaItem, MediaReport
from trainyard.contract.wire.reports import (
    MAX_PARAMETER_TEXT,
    MAX_PARAMETERS,
    MAX_POINTS,
    UNKNOWN_STEP,
    EventsBatch,
    MetricsBatch,
    ParametersReport,
    Point,
    Progress,
    SpoolKind,
    WorkerEvent,
)
from trainyard.contract.wire.spool import SpoolBody, format_record
from worker.reporting.spool_file import SpoolFile
from worker.trackers.history import read_history
from worker.trackers.steps import ExecutionSteps, MetricHistory

EVENTS_PER_NODE = 1_000_000
MAX_NAMES = 9_000
"""Metric names of one node, below what the service allows a job."""
_TRAINER_NAMES = {"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"}
_CHECK_SECONDS = 1.0
"""How often the spool is read for metrics that the program reports by `trainyard.script`."""
_METRICS_MARK = b'"kind": "metrics"'


@dataclass(frozen=True)
class TrackedValue:
    """One value of a metric as a tracker sent it."""

    name: str
    value: Any
    step: int | None
    """None: the program gave no step."""
    time: datetime


@dataclass
class _Execution:
    """The spool of one execution."""

    file: SpoolFile
    steps: ExecutionSteps
    records: int = 0
    events: int = 0
    total_steps: int | None = None
    """The length of the run, if the parameters state it."""
    trackers: dict[str, str] = field(default_factory=dict)
    """The tracker of each metric."""
    latest: dict[str, tuple[int | None, float, datetime]] = field(default_factory=dict)


class Journal:
    """Appends records to the node's spool; a call returns when they are written."""

    def __init__(self, layout: AttemptLayout, node: int) -> None:
        self._layout = layout
        self._node = node
        self._lock = threading.Lock()
        self._executions: dict[int, _Execution] = {}
        self._names: dict[str, str | None] = {}
        """The metric of each name that the program uses; None: there are too many."""
        self._stated: set[str] = set()
        self._program_reports = False
        self._next_check = 0.0
        self._counted_file = RunLayout(layout.root.parent.parent).root / "counted_metrics.json"

    def log(self, execution: int, tracker: str, values: Iterable[TrackedValue]) -> int:
        """Append the values that are numbers, without exact repetitions; return the number of points.

        A metric that several trackers of a program report is taken from the first.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            counted = len(run.steps.counted)
            points = [point for value in values if (point := self._point(run, execution, tracker, value))]
            if len(run.steps.counted) != counted:
                self._save_counted(run.steps.counted)
            for start in range(0, len(points), MAX_POINTS):
                batch = MetricsBatch(
                    execution=execution,
                    resumed_from_step=run.steps.resumed_from,
                    points=tuple(points[start : start + MAX_POINTS]),
                    progress=self._progress(execution, run),
                )
                self._append(run, "metrics", batch)
        return len(points)

    def add_unread(
        self, execution: int, values: Callable[[Mapping[str, MetricHistory]], Iterable[TrackedValue]]
    ) -> int:
        """Append what earlier executions logged and nobody read, with its own steps; return the number of points.

        Args:
            values: Returns the values for what is known of earlier executions, by metric.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            points = [
                Point(key=allowed_name(value.name), step=value.step or 0, value=number, time=value.time)
                for value in values(run.steps.history)
                if (number := parse_value(value.value)) is not None
            ]
            for start in range(0, len(points), MAX_POINTS):
                part = tuple(points[start : start + MAX_POINTS])
                batch = MetricsBatch(execution=execution, resumed_from_step=UNKNOWN_STEP, points=part)
                self._append(run, "metrics", batch)
        return len(points)

    def add_points(self, execution: int, points: Sequence[Point]) -> None:
        """Append points that are of no tracker: they have no part in the steps and names of the program.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            batch = MetricsBatch(execution=execution, resumed_from_step=UNKNOWN_STEP, points=tuple(points))
            self._append(self._execution(execution), "metrics", batch)

    def describe(
        self,
        execution: int,
        *,
        parameters: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        notes: str | None = None,
        removed_tags: Iterable[str] = (),
    ) -> None:
        """Append parameters, tags, notes, and which tags were deleted. Nested values are flattened, and long texts cut.

        Raises:
            OSError: They could not be written.
        """
        flat = dict(list(_flatten(parameters or {}))[:MAX_PARAMETERS])
        texts = {_text(name, MAX_METRIC_NAME): _text(value, MAX_PARAMETER_TEXT) for name, value in (tags or {}).items()}
        report = ParametersReport(
            execution=execution,
            parameters=flat,
            tags=dict(list(texts.items())[:MAX_PARAMETERS]),
            notes=None if notes is None else _text(notes, MAX_PARAMETER_TEXT),
            removed_tags=tuple(_text(name, MAX_METRIC_NAME) for name in removed_tags),
        )
        with self._lock:
            run = self._execution(execution)
            run.total_steps = trainer_steps(flat) or run.total_steps
            self._append(run, "parameters", report)

    def add_media(self, execution: int, items: Sequence[MediaItem]) -> None:
        """Append media. A file may be complete later than its item.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            for start in range(0, len(items), MAX_MEDIA):
                part = tuple(items[start : start + MAX_MEDIA])
                self._append(self._execution(execution), "media", MediaReport(execution=execution, items=part))

    def state_once(self, execution: int, kind: str, message: str) -> None:
        """Add a warning to the job's events, once for each kind."""
        with self._lock:
            self._state(self._execution(execution), execution, kind, message)

    def highest_step(self, execution: int) -> int:
        with self._lock:
            run = self._executions.get(execution)
            return run.steps.highest if run else 0

    def resumes_at(self, execution: int) -> int:
        """Return the step after the last point that was logged before the newest checkpoint; 0: there is none."""
        with self._lock:
            history = self._execution(execution).steps.history
        return max((one.resumes_at for one in history.values()), default=0)

    def close(self) -> None:
        with self._lock:
            for run in self._executions.values():
                run.file.close()

    def _execution(self, execution: int) -> _Execution:
        run = self._executions.get(execution)
        if run is None:
            path = self._layout.tracker_spool(execution, self._node)
            records = path.read_bytes().count(b"\n") if path.exists() else 0
            history = read_history(self._layout, execution) if execution > 1 else {}
            steps = ExecutionSteps(execution, history, self._load_counted() if execution > 1 else set())
            run = self._executions[execution] = _Execution(SpoolFile(path), steps, records, events=records)
        return run

    def _point(self, run: _Execution, execution: int, tracker: str, value: TrackedValue) -> Point | None:
        number = parse_value(value.value)
        if number is None:
            message = f"the value of {value.name[:80]!a} is no number; such values are left out"
            self._state(run, execution, "not_a_number", message)
            return None
        name = self._name(run, execution, value.name)
        if name is None or run.trackers.setdefault(name, tracker) != tracker:
            return None
        latest = (value.step, number, value.time)
        if run.latest.get(name) == latest:
            return None
        run.latest[name] = latest
        return Point(key=name, step=run.steps.assign(name, value.step), value=number, time=value.time)

    def _name(self, run: _Execution, execution: int, name: str) -> str | None:
        if name in self._names:
            return self._names[name]
        if len(self._names) >= MAX_NAMES:
            self._state(run, execution, "too_many_names", f"only the first {MAX_NAMES} metric names are recorded")
            return None
        allowed = allowed_name(name)
        if allowed != name:
            message = f"Metric name {name[:80]!a} is stored as {allowed[:80]!a}; others are changed in the same way"
            self._state(run, execution, "name", message)
        self._names[name] = allowed
        return allowed

    def _progress(self, execution: int, run: _Execution) -> Progress | None:
        """Return the highest step, unless the program reports its progress by `trainyard.script`."""
        if not self._program_reports and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            with contextlib.suppress(OSError):
                self._program_reports = _METRICS_MARK in self._layout.spool_file(execution).read_bytes()
        if self._program_reports:
            return None
        total = run.total_steps if (run.total_steps or 0) >= run.steps.highest else None
        return Progress(step=run.steps.highest, total_steps=total)

    def _state(self, run: _Execution, execution: int, kind: str, message: str) -> None:
        if kind in self._stated:
            return
        self._stated.add(kind)
        event = WorkerEvent(
            sequence=(self._node + 1) * EVENTS_PER_NODE + run.events,
            type="report_adjusted",
            level="warning",
            message=message,
            data={"kind": kind},
            time=datetime.now(UTC),
        )
        run.events += 1
        self._append(run, "events", EventsBatch(execution=execution, events=(event,)))

    def _append(self, run: _Execution, kind: SpoolKind, body: SpoolBody) -> None:
        run.file.append(format_record(run.records, kind, body))
        run.records += 1

    def _load_counted(self) -> set[str]:
        try:
            names = json.loads(self._counted_file.read_bytes())
        except (OSError, ValueError):
            return set()
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def _save_counted(self, names: set[str]) -> None:
        # Without the file, only the counts of a later execution begin at 0 again.
        with contextlib.suppress(OSError):
            write_atomic(self._counted_file, json.dumps(sorted(names)))


def trainer_steps(parameters: Mapping[str, Any]) -> int | None:
    """Return the length of the run in the arguments of Hugging Face's Trainer; None if they do not have it.

    Programs give `max_steps` other meanings, such as the length of an episode: it counts beside the Trainer's names.
    """
    steps = str(parameters.get("max_steps"))
    is_trainer = parameters.keys() >= _TRAINER_NAMES
    return int(steps) if is_trainer and re.fullmatch(r"[1-9]\d{0,14}", steps) else None


def parse_value(value: Any) -> float | None:
    """Return the number that a tracker sent as a value of a metric; None if it is none."""
    if isinstance(value, str):
        value = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}.get(value.lower())
    return float(value) if isinstance(value, int | float) else None


def _text(value: object, length: int) -> str:
    return str(sanitize(str(value)))[:length]


def _flatten(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield the scalars of nested mappings; the names are joined with dots."""
    for key, value in values.items():
        name = _text(f"{prefix}{key}", MAX_METRIC_NAME) or "_"
        if isinstance(value, Mapping) and value and depth < 8:
            yield from _flatten(value, f"{name}.", depth + 1)
        elif isinstance(value, bool | int | float) or value is None:
            yield name, value
        else:
            yield name, _text(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAMETER_TEXT)
