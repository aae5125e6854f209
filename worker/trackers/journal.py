"""The only writer of a node's tracker spool. It takes the reports of all trackers, from any thread."""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.wire.media import MAX_MEDIA, MediaItem, MediaReport
from trainyard.contract.wire.reports import (
    MAX_PARAMETERS,
    MAX_POINTS,
    UNKNOWN_STEP,
    EventLevel,
    EventsBatch,
    MetricsBatch,
    ParametersReport,
    Point,
    Progress,
    SpoolKind,
    WorkerEvent,
)
from trainyard.contract.wire.spool import SpoolBody, format_record
from trainyard.contract.wire.worker_events import ALERT
from worker.reporting.spool_file import SpoolFile
from worker.trackers.curves import WANDB_SUMMARY, Curves, NewPoints
from worker.trackers.history import read_history
from worker.trackers.left_out import LeftOut
from worker.trackers.names import Kind, StoredNames
from worker.trackers.parameters import leaves_of, stored_text, trainer_steps
from worker.trackers.steps import ExecutionSteps, MetricHistory

EVENTS_PER_NODE = 1_000_000
MAX_NAMES = 9_000
"""Maximum metric names of a node, below the service's limit for a job."""
_CHECK_SECONDS = 1.0
"""How often the spool is read for metrics that the program reports by `trainyard.script`."""
_METRICS_MARK = b'"kind": "metrics"'


@dataclass(frozen=True)
class TrackedValue:
    """A value of a metric as a tracker sent it."""

    name: str
    value: Any
    step: int | None
    """None: the program gave no step. A point at a step that cannot be stored is left out."""
    time: datetime
    prefix: str = ""
    """The beginning of the name that tells its run from others."""
    on_axis: bool = False
    """Whether the step is a value of another metric of the program, and not the tracker's own count."""


@dataclass
class _Execution:
    """The spool of one execution."""

    file: SpoolFile
    curves: Curves
    records: int = 0
    events: int = 0
    total_steps: int | None = None
    """The length of the run, if the parameters state it."""

    @property
    def steps(self) -> ExecutionSteps:
        return self.curves.steps


class Journal:
    """Appends records to the node's spool; a call returns when they are written."""

    def __init__(self, layout: AttemptLayout, node: int) -> None:
        self._layout = layout
        self._node = node
        self._lock = threading.Lock()
        self._executions: dict[int, _Execution] = {}
        self._names: dict[tuple[str, str, str], str] = {}
        """The metric of each tracker, prefix and name that the program uses."""
        self._stated: set[str] = set()
        self._program_reports = False
        self.logged = 0
        """The number of points of the program's trackers so far."""
        self._next_check = 0.0
        run = RunLayout(layout.root.parent.parent).root
        self._counted_file = run / "counted_metrics.json"
        self._stored_names = StoredNames(run / f"logged_names-{node}.jsonl")

    def log(self, execution: int, tracker: str, values: Iterable[TrackedValue]) -> int:
        """Append the values that are numbers, without exact repetitions; return the number of points.

        A metric that several trackers of a program report is taken from one of them, in a fixed order.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            new = NewPoints()
            for value in values:
                self._add(run, execution, tracker, value, new)
            self._write(run, execution, new)
            self.logged += len(new.points)
        return len(new.points)

    def rewrite(self, execution: int, tracker: str, values: Iterable[TrackedValue]) -> int:
        """Replace the curves of the metrics that the values name, and return the number of points.

        Their earlier points in this execution become void, and steps are assigned as if nothing had been logged. Either
        all records are written or none.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            taken = NewPoints()
            curves: dict[str, list[TrackedValue]] = {}
            for value in values:
                name = self._name(run, execution, tracker, value)
                if name is not None and run.curves.take(taken, tracker, name):
                    curves.setdefault(name, []).append(value)
            new = NewPoints()
            for name, logged in curves.items():
                run.curves.begin_again(new, name)
                for value in logged:
                    self._add(run, execution, tracker, value, new)
            written = {name for name, _ in new.points}
            new.points += [(name, None) for name in curves if name not in written]
            self._write(run, execution, new)
        return len(new.points) - len(curves.keys() - written)

    def add_unread(
        self,
        execution: int,
        tracker: str,
        values: Callable[[Callable[[TrackedValue], MetricHistory | None]], Iterable[TrackedValue]],
    ) -> int:
        """Append values that earlier executions logged and nobody read, at their steps; return the number of points.

        Args:
            values: Returns the values. Its argument is a function that returns the known history of a value's metric,
                or an empty history if nothing is known of any metric.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            history = run.steps.history

            def known(value: TrackedValue) -> MetricHistory | None:
                return history.get(self._metric(tracker, value), None if history else MetricHistory(0, 0))

            points = [
                Point(key=self._metric(tracker, value), step=value.step or 0, value=number, time=value.time)
                for value in values(known)
                if (number := parse_value(value.value)) is not None and 0 <= (value.step or 0) <= MAX_SAFE_INT
            ]
            for start in range(0, len(points), MAX_POINTS):
                part = tuple(points[start : start + MAX_POINTS])
                batch = MetricsBatch(execution=execution, resumed_from_step=UNKNOWN_STEP, points=part)
                self._append(run, "metrics", batch)
        return len(points)

    def add_points(self, execution: int, points: Sequence[Point]) -> None:
        """Append points that no tracker reported. They do not affect the steps and names of the program.

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
        prefix: str = "",
        parameters: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        notes: str | None = None,
        removed_tags: Iterable[str] = (),
    ) -> None:
        """Append parameters, tags, notes, and names of deleted tags. Nested values are flattened, and long texts cut.

        Args:
            prefix: The prefix of the run's names.

        Raises:
            OSError: They could not be written.
        """
        with self._lock:
            run = self._execution(execution)
            leaves = islice(leaves_of(parameters or {}), MAX_PARAMETERS)
            flat = {self._stored(run, execution, "Parameter", prefix, *path): value for path, value in leaves}
            texts = islice((tags or {}).items(), MAX_PARAMETERS)
            report = ParametersReport(
                execution=execution,
                parameters=flat,
                tags={self._stored(run, execution, "Tag", prefix, name): stored_text(value) for name, value in texts},
                notes=None if notes is None else stored_text(notes),
                removed_tags=tuple(self._stored_names.stored("Tag", prefix, name) for name in removed_tags),
            )
            run.total_steps = trainer_steps(flat) or run.total_steps
            self._append(run, "parameters", report)

    def media_key(self, prefix: str, name: str) -> str:
        """Return the key under which a program's media of a name are stored."""
        with self._lock:
            return self._stored_names.stored("Medium", prefix, name)

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

    def warn(self, execution: int, kind: str, message: str) -> None:
        """Add a warning of this type to the job's events.

        Raises:
            OSError: It could not be written.
        """
        self.event(execution, kind, "warning", message, {})

    def event(self, execution: int, type_: str, level: EventLevel, message: str, data: dict[str, Any]) -> None:
        """Add an event to the job's history.

        Raises:
            OSError: It could not be written.
        """
        with self._lock:
            self._event(self._execution(execution), execution, type_, level, message, data)

    def alert(self, execution: int, level: EventLevel, title: str, text: str) -> None:
        """Add an alert of the program to the job's events, which webhooks deliver.

        Raises:
            OSError: It could not be written.
        """
        title, text = stored_text(title), stored_text(text)
        with self._lock:
            message = f"{title}: {text}" if text else title
            self._event(self._execution(execution), execution, ALERT, level, message, {"title": title, "text": text})

    def highest_step(self, execution: int) -> int:
        with self._lock:
            run = self._executions.get(execution)
            return run.steps.highest if run else 0

    def resumes_at(self, execution: int, tracker: str) -> int:
        """Return the step after a tracker's last point before the newest checkpoint; 0: there is none."""
        with self._lock:
            history, own = self._execution(execution).steps.history, self._stored_names.metrics(tracker)
        # An earlier release did not record the tracker of each metric.
        known = [one for name, one in history.items() if name in own] or history.values()
        return max((one.resumes_at for one in known), default=0)

    def close(self) -> None:
        with self._lock:
            self._state_left_out()
            for run in self._executions.values():
                run.file.close()

    def _execution(self, execution: int) -> _Execution:
        run = self._executions.get(execution)
        if run is None:
            self._state_left_out()
            path = self._layout.tracker_spool(execution, self._node)
            records = path.read_bytes().count(b"\n") if path.exists() else 0
            history = read_history(self._layout, execution) if execution > 1 else {}
            steps = ExecutionSteps(execution, history, self._load_counted() if execution > 1 else set())
            run = self._executions[execution] = _Execution(SpoolFile(path), Curves(steps), records, events=records)
        return run

    def _add(self, run: _Execution, execution: int, tracker: str, value: TrackedValue, new: NewPoints) -> None:
        number = parse_value(value.value)
        if number is None:
            message = f"the value of {value.name[:80]!r} is no number; such values are left out"
            self._state(run, execution, "not_a_number", message)
            return
        name = self._name(run, execution, tracker, value)
        if name is not None:
            if value.on_axis:
                self._stored_names.note_axis(tracker, name)
            run.curves.add(new, tracker, name, number, value.step, value.time)

    def _write(self, run: _Execution, execution: int, new: NewPoints) -> None:
        if run.steps.counted_changed:
            run.steps.counted_changed = False
            self._save_counted(run.steps.counted)
        batches = [
            MetricsBatch(
                execution=execution,
                resumed_from_step=run.steps.resumed_from,
                points=tuple(point for _, point in part if point),
                progress=self._progress(execution, run),
                restarts=tuple(begun),
            )
            for part, begun in new.parts()
        ]
        self._append(run, "metrics", *batches)

    def _name(self, run: _Execution, execution: int, tracker: str, value: TrackedValue) -> str | None:
        """Return the metric of a value; None if there are too many."""
        logged = (tracker, value.prefix, value.name)
        if logged not in self._names:
            if len(self._names) >= MAX_NAMES:
                message = f"only the first {MAX_NAMES} metric names are recorded"
                self._state(run, execution, "too_many_names", message)
                return None
            stored = self._metric(tracker, value)
            self._names[logged] = self._stated_name(run, execution, "Metric", value.name, stored)
        return self._names[logged]

    def _metric(self, tracker: str, value: TrackedValue) -> str:
        name = value.name.removeprefix(value.prefix)
        source = "wandb" if tracker == WANDB_SUMMARY else tracker
        return self._stored_names.stored("Metric", value.prefix, name, tracker=source)

    def _stored(self, run: _Execution, execution: int, kind: Kind, prefix: str, *keys: str) -> str:
        stored = self._stored_names.stored(kind, prefix, *keys)
        return self._stated_name(run, execution, kind, prefix + ".".join(keys), stored)

    def _stated_name(self, run: _Execution, execution: int, kind: Kind, name: str, stored: str) -> str:
        """Return the stored name; a difference from the program's name is stated once for each kind."""
        if stored != name:
            message = f"{kind} name {name[:80]!r} is stored as {stored!r}; others are changed in the same way"
            self._state(run, execution, "name" if kind == "Metric" else f"{kind.lower()}_name", message)
        return stored

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
        self._event(run, execution, "report_adjusted", "warning", message, {"kind": kind})

    def _state_left_out(self) -> None:
        """State the values that are left out of the curves of ended executions."""
        for execution, run in self._executions.items():
            left_out, run.curves.left_out = run.curves.left_out, LeftOut()
            # Where the spool cannot be written, requests of trackers fail with the reason.
            with contextlib.suppress(OSError):
                for kind, message, data in left_out.events(self._layout.tracker_spool(execution, self._node)):
                    self._event(run, execution, "report_adjusted", "warning", message, {"kind": kind, **data})

    def _event(
        self, run: _Execution, execution: int, type_: str, level: EventLevel, message: str, data: dict[str, Any]
    ) -> None:
        event = WorkerEvent(
            sequence=(self._node + 1) * EVENTS_PER_NODE + run.events,
            type=type_,
            level=level,
            message=message,
            data=data,
            time=datetime.now(UTC),
        )
        run.events += 1
        self._append(run, "events", EventsBatch(execution=execution, events=(event,)))

    def _append(self, run: _Execution, kind: SpoolKind, *bodies: SpoolBody) -> None:
        """Append a record for each body; either all are written or none."""
        run.file.append(b"".join(format_record(number, kind, body) for number, body in enumerate(bodies, run.records)))
        run.records += len(bodies)

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


def parse_value(value: Any) -> float | None:
    """Return the number that a tracker sent as a value of a metric; None if it is not a number."""
    if isinstance(value, str):
        value = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}.get(value.lower())
    return float(value) if isinstance(value, int | float) else None
