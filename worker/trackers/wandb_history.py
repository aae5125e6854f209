"""Interprets W&B's run files and configuration: the points of history lines, and parameters."""

import fnmatch
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainyard.contract.base import MAX_SAFE_INT
from worker.trackers.journal import TrackedValue

_CLIENT_KEYS = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
_COMMON_STEP_METRICS = ("train/global_step", "trainer/global_step")
"""The step metrics of Transformers and Lightning. They count while no definition is known: W&B before 0.20 sends the
definitions at the end of a run, and a run that is killed before its file has a block sends none."""
_MAX_DEPTH = 8
_YEAR_2200 = 7_258_118_400
_NO_STEP = -1
"""The step of a line whose step is not a whole number."""


def parse_config(text: object) -> tuple[dict[str, Any], "StepMetrics"]:
    """Return the parameters and the step metrics of the JSON text in which W&B sends `run.config`."""
    document = _parse_object(text)
    own = document.pop("_wandb", None)
    values = {name: one.get("value") if isinstance(one, dict) else one for name, one in document.items()}
    defined = own.get("value", {}).get("m") if isinstance(own, dict) and isinstance(own.get("value"), dict) else None
    return values, StepMetrics.parse(defined)


@dataclass(frozen=True)
class StepMetrics:
    """Which metric gives the step of others: `run.define_metric("*", step_metric="train/global_step")`."""

    of_name: Mapping[str, str | None] = field(default_factory=dict)
    """The step metric by name; None: the metric is defined without a step metric, and no pattern applies to it."""
    of_pattern: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, defined: object) -> "StepMetrics":
        """Read the list of metric definitions of a configuration, whose keys are the numbers of protobuf fields.

        1 is the name of a metric, 2 a pattern of names, 4 the name of the step metric, 5 its position in the list, from
        1, and 9 is present if the definition replaces the previous definition (MetricRecord in `wandb_internal.proto`).
        """
        records = [one for one in defined if isinstance(one, dict)] if isinstance(defined, list) else []
        names: dict[str, str | None] = {}
        patterns: dict[str, str] = {}
        for record in records:
            step, position = record.get("4"), record.get("5")
            if isinstance(position, int) and 1 <= position <= len(records):
                step = records[position - 1].get("1")
            if isinstance(record.get("1"), str):
                before = None if record.get("9") else names.get(record["1"])
                names[record["1"]] = step if isinstance(step, str) else before
            elif isinstance(step, str) and isinstance(record.get("2"), str):
                patterns[record["2"]] = step
        return cls(names, patterns)

    @property
    def are_defined(self) -> bool:
        return bool(self.of_name or self.of_pattern)

    def __or__(self, other: "StepMetrics") -> "StepMetrics":
        return StepMetrics({**self.of_name, **other.of_name}, {**self.of_pattern, **other.of_pattern})

    def with_preview(self, streamed: "StepMetrics") -> "StepMetrics":
        """Return a file's definitions with the stream's, which may be newer, or lack the newest."""
        axes = {name: step for name, step in streamed.of_name.items() if step is not None or name not in self.of_name}
        return self | StepMetrics(axes, streamed.of_pattern)

    def step_metric(self, name: str) -> str | None:
        """Return the step metric of a metric, which may be the metric itself; None: W&B's own count of calls."""
        if name in self.of_name.values() or name in self.of_pattern.values():
            return name
        if name in self.of_name:
            return self.of_name[name]
        return next((step for glob, step in self.of_pattern.items() if fnmatch.fnmatchcase(name, glob)), None)


@dataclass
class RunHistory:
    """The points of a run's history lines, and the steps of a line's values."""

    resumes_at: int = 0
    """The step at which a program continues whose count of calls begins at 0 again."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    used: dict[str, str | None] = field(default_factory=dict)
    """The step metric with which the values of each name were yielded; None: W&B's own count of calls."""
    last_step: int = 0
    next_step: int = 0
    """The count of the client after its last line; 0 without lines."""
    earlier: frozenset[str] = frozenset()
    """The names of metrics that the run has logged in earlier executions."""
    _offset: int | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of all metrics that the run has logged."""
        return self.earlier | self.used.keys()

    @property
    def on_axes(self) -> set[str]:
        """The names whose values have the steps of another metric."""
        return {name for name, metric in self.used.items() if metric is not None}

    def values(self, line: Mapping[str, Any], prefix: str) -> Iterator[TrackedValue]:
        """Yield the values of a history line. Images and other media are left out."""
        if self._offset is None:
            self._offset = self.resumes_at if integer(line.get("_step")) == 0 else 0
        self.next_step = max(self.next_step, (integer(line.get("_step")) or 0) + 1)
        flat = dict(_flatten(line))
        time = _time(line.get("_timestamp"))
        for name, value in flat.items():
            metric = self._step_metric(name, flat)
            self.used[name] = metric if self.metrics.are_defined else metric or self.used.get(name)
            step = self._step(name, line, flat)
            self.last_step = max(self.last_step, integer(step) or 0)
            yield TrackedValue(prefix + name, value, step, time, prefix, on_axis=metric is not None)

    def changed(self) -> set[str]:
        """Return the names whose values were yielded with a step metric other than the present definition."""
        if not self.metrics.are_defined:
            return set()
        return {name for name, metric in self.used.items() if self.metrics.step_metric(name) != metric}

    def forget(self, names: set[str]) -> None:
        """Accept the steps of the values that were yielded under these names."""
        self.used |= {name: self.metrics.step_metric(name) for name in names}

    def objects(self, line: Mapping[str, Any]) -> Iterator[tuple[str, int | None, dict[str, Any], datetime]]:
        """Yield the objects of a history line, such as images, with their names, steps and times."""
        flat, time = dict(_flatten(line)), _time(line.get("_timestamp"))
        for name, value in _flatten(line, objects=True):
            yield name, self._step(name, line, flat), value, time

    def _step_metric(self, name: str, flat: Mapping[str, Any]) -> str | None:
        if self.metrics.are_defined:
            return self.metrics.step_metric(name)
        return next((one for one in _COMMON_STEP_METRICS if one in flat), None)

    def _step(self, name: str, line: Mapping[str, Any], flat: Mapping[str, Any]) -> int | None:
        metric = self._step_metric(name, flat)
        given = _whole(flat.get(metric)) if metric else None
        if given is not None or line.get("_step") is None:
            return given
        counted = _whole(line["_step"])
        return _NO_STEP if counted is None else counted + (self._offset or 0)

    def summary_values(self, summary: Mapping[str, Any], prefix: str) -> Iterator[TrackedValue]:
        """Yield the values that the program set in `run.summary` and never logged, at the last step."""
        logged = self.names
        for name, value in _flatten(summary):
            # The summary also has aggregates of logged metrics: `loss.min`.
            if not any(name == known or name.startswith(f"{known}.") for known in logged):
                yield TrackedValue(prefix + name, value, self.last_step, datetime.now(UTC), prefix)


def parse_lines(chunk: object) -> tuple[int, list[dict[str, Any]]]:
    """Return the position of the first line of a chunk of the history file, and the lines."""
    first, lines = _parse_chunk(chunk)
    return first, [_parse_object(line) for line in lines]


def parse_summary(chunk: object) -> dict[str, Any]:
    """Return the newest summary in a chunk of the summary file."""
    _, lines = _parse_chunk(chunk)
    return _parse_object(lines[-1]) if lines else {}


def resume_point(summary: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the fields from which a client continues a run.

    Args:
        summary: The summary of the run so far.
        step: The step after its last line; 0: the run begins.
    """
    last = {"_step": step - 1} if step else {}
    summary = {name: value for name, value in summary.items() if name != "_step"} | last
    tail = [json.dumps(last | {"_runtime": summary.get("_runtime", 0)})] if step else []
    return {"historyLineCount": step, "historyTail": json.dumps(tail), "summaryMetrics": json.dumps(summary)}


def _parse_chunk(chunk: object) -> tuple[int, list[object]]:
    """Return the position of the first line of a chunk in its file, and the lines."""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("content"), list):
        return 0, []
    return max(0, integer(chunk.get("offset")) or 0), chunk["content"]


def _parse_object(text: object) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _flatten(
    values: Mapping[str, Any], prefix: str = "", depth: int = 0, *, objects: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested mappings, or the objects that W&B gives a type, such as images."""
    for key, value in values.items():
        if depth == 0 and key in _CLIENT_KEYS:
            continue
        if not isinstance(value, dict) or "_type" in value:
            if isinstance(value, dict) == objects:
                yield prefix + key, value
        elif depth < _MAX_DEPTH:
            yield from _flatten(value, f"{prefix}{key}.", depth + 1, objects=objects)


def integer(value: object) -> int | None:
    """Return a number that is whole and exact; None for anything else."""
    number = _whole(value)
    return None if number is None or abs(number) > MAX_SAFE_INT else number


def _whole(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object) -> datetime:
    if isinstance(value, int | float) and 0 < value < _YEAR_2200:
        return datetime.fromtimestamp(value, UTC)
    return datetime.now(UTC)
