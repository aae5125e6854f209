"""What W&B's run files and configuration mean: the points of history lines, and parameters."""

import fnmatch
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from worker.trackers.journal import TrackedValue

_CLIENT_KEYS = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
COMMON_STEP_METRICS = ("train/global_step", "trainer/global_step")
"""The step metrics of Transformers and Lightning, which are known before the client sends the definitions."""
_MAX_DEPTH = 8
_YEAR_2200 = 7_258_118_400


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

    of_name: Mapping[str, str] = field(default_factory=dict)
    of_pattern: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, defined: object) -> "StepMetrics":
        """Read the list of metric definitions of a configuration, whose keys are the numbers of protobuf fields.

        1 is the name of a metric, 2 a pattern of names, 4 the name of the step metric, and 5 its position in the list,
        from 1 (MetricRecord in `wandb_internal.proto`).
        """
        records = [one for one in defined if isinstance(one, dict)] if isinstance(defined, list) else []
        names: dict[str, str] = {}
        patterns: dict[str, str] = {}
        for record in records:
            step, position = record.get("4"), record.get("5")
            if isinstance(position, int) and 1 <= position <= len(records):
                step = records[position - 1].get("1")
            if isinstance(step, str) and isinstance(record.get("1"), str):
                names[record["1"]] = step
            elif isinstance(step, str) and isinstance(record.get("2"), str):
                patterns[record["2"]] = step
        return cls(names, patterns)

    @property
    def are_defined(self) -> bool:
        return bool(self.of_name or self.of_pattern)

    def step_metric(self, name: str) -> str | None:
        """Return the metric that gives the step of a metric, or is one; None: W&B's own count of calls."""
        exact = name if name in self.of_name.values() else self.of_name.get(name)
        if exact is not None:
            return exact
        return next((step for glob, step in self.of_pattern.items() if fnmatch.fnmatchcase(name, glob)), None)


@dataclass
class RunHistory:
    """The history file of a run: which lines are known, and at which steps their values are."""

    resumes_at: int = 0
    """The step at which a program continues whose count of calls begins at 0 again."""
    names: set[str] = field(default_factory=set)
    last_step: int = 0
    _offset: int = 0
    _lines: int | None = None

    def new_lines(self, chunk: object) -> Iterator[dict[str, Any]]:
        """Yield the lines of a chunk of the file that are new. A client repeats a request that was not answered."""
        first, lines = _parse_chunk(chunk)
        for position, text in enumerate(lines, first):
            if self._lines is not None and position < self._lines:
                continue
            line = _parse_object(text)
            if self._lines is None and _integer(line.get("_step")) == 0:
                self._offset = self.resumes_at
            self._lines = position + 1
            yield line

    def values(self, line: Mapping[str, Any], prefix: str, metrics: StepMetrics) -> Iterator[TrackedValue]:
        """Yield the values of a history line. Images and other media are left out."""
        flat = dict(_flatten(line))
        time = _time(line.get("_timestamp"))
        for name, value in flat.items():
            step = self._step(name, line, flat, metrics)
            self.names.add(name)
            self.last_step = max(self.last_step, step or 0)
            yield TrackedValue(prefix + name, value, step, time)

    def objects(
        self, line: Mapping[str, Any], prefix: str, metrics: StepMetrics
    ) -> Iterator[tuple[str, int | None, dict[str, Any], datetime]]:
        """Yield the objects of a history line, such as images, with their names, steps and times."""
        flat, time = dict(_flatten(line)), _time(line.get("_timestamp"))
        for name, value in _flatten(line, objects=True):
            yield prefix + name, self._step(name, line, flat, metrics), value, time

    def _step(self, name: str, line: Mapping[str, Any], flat: Mapping[str, Any], metrics: StepMetrics) -> int | None:
        counted = _integer(line.get("_step"))
        metric = metrics.step_metric(name) or next((one for one in COMMON_STEP_METRICS if one in flat), None)
        given = _integer(flat.get(metric)) if metric else None
        return given if given is not None else None if counted is None else counted + self._offset

    def summary_values(self, summary: Mapping[str, Any], prefix: str) -> Iterator[TrackedValue]:
        """Yield what the program set in `run.summary` and never logged, at the last step."""
        for name, value in _flatten(summary):
            # The summary also has aggregates of logged metrics: `loss.min`.
            if not any(name == known or name.startswith(f"{known}.") for known in self.names):
                yield TrackedValue(prefix + name, value, self.last_step, datetime.now(UTC))


def gives_step(line: Mapping[str, Any]) -> bool:
    """Whether the first line of a run has a step of its program: a known step metric, or a count above 0."""
    return bool(line.get("_step")) or any(name in line for name in COMMON_STEP_METRICS)


def may_give_step(line: Mapping[str, Any]) -> bool:
    """Whether a definition that is not known yet may name a metric of the line as the step of others.

    The client adds a step metric to each line of the metrics that it belongs to, so that a line without an integer has
    the step that the client counts.
    """
    return any(_integer(value) is not None for _, value in _flatten(line))


def parse_summary(chunk: object) -> dict[str, Any]:
    """Return the newest summary in a chunk of the summary file."""
    _, lines = _parse_chunk(chunk)
    return _parse_object(lines[-1]) if lines else {}


def _parse_chunk(chunk: object) -> tuple[int, list[object]]:
    """Return the position of the first line of a chunk in its file, and the lines."""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("content"), list):
        return 0, []
    return _integer(chunk.get("offset")) or 0, chunk["content"]


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


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 2**53:
        return None
    return int(value) if int(value) == value else None


def _time(value: object) -> datetime:
    if isinstance(value, int | float) and 0 < value < _YEAR_2200:
        return datetime.fromtimestamp(value, UTC)
    return datetime.now(UTC)
