"""Values that are left out of the curves of an execution, for the job's events."""

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainyard.contract.wire.spool import SpoolCorruptError, parse_spool

_MAX_VALUES = 1_000_000
"""Values that are compared: four bytes each."""
_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of the largest spool that is read to compare the values."""
_MAX_NAMED = 20
"""Metrics that an event names."""

Values = dict[str, "array[float]"]
"""Values by metric."""


class LeftOut:
    """Counts the values that are left out, by metric."""

    def __init__(self) -> None:
        self.replaced: set[str] = set()
        """Metrics whose curve began again when a tracker later in the order reported them."""
        self._steps: Counter[str] = Counter()
        self._values: Values = {}
        """Values from trackers earlier in the order."""
        self._uncompared: Counter[str] = Counter()
        self._size = 0

    def add_step(self, name: str) -> None:
        """Count a point whose step cannot be stored."""
        self._steps[name] += 1

    def add_value(self, name: str, number: float) -> None:
        """Count a value of a metric that another tracker reports."""
        if self._size >= _MAX_VALUES:
            self._uncompared[name] += 1
            return
        self._size += 1
        self._values.setdefault(name, array("f")).append(number)

    def events(self, spool: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the kind, the message and the data of each event.

        Args:
            spool: The file with the points of the execution.
        """
        if self._steps:
            message = f"{_points(self._steps)}: left out, as the step is no whole number from 0 to 2**53"
            yield "step", message, _data(self._steps)
        others = self._differing(spool) if self._values or self.replaced else Counter[str]()
        if others:
            message = f"{_points(others)}: left out, as another tracker reports the metric with other values"
            yield "two_trackers", f"{message}; give one of them another name", _data(others)

    def _differing(self, spool: Path) -> Counter[str]:
        """Return how many values of each metric its curve does not have."""
        counts = Counter(self._uncompared)
        names = self._values.keys() | self.replaced
        curves, voided = _curves(spool, names)
        for name in names:
            left_out = [*self._values.get(name, ()), *(voided.get(name, ()) if name in self.replaced else ())]
            curve = {_key(value) for value in curves.get(name, ())}
            counts[name] += sum(_key(value) not in curve for value in left_out)
        return +counts


def _curves(spool: Path, names: set[str]) -> tuple[Values, Values]:
    """Return the values of curves, and the values from before the curves began again; nothing from a long spool."""
    curves: Values = {name: array("f") for name in names}
    voided: Values = {name: array("f") for name in names}
    try:
        if spool.stat().st_size > _MAX_BYTES:
            return {}, {}
        for record in parse_spool(spool):
            batch = json.loads(record.body_text) if record.kind == "metrics" else {}
            for name in names.intersection(batch.get("restarts", ())):
                voided[name].extend(curves[name])
                del curves[name][:]
            for point in batch.get("points", ()):
                if point["key"] in names:
                    curves[point["key"]].append(float(point["value"]))
    except (OSError, SpoolCorruptError):
        pass
    return curves, voided


def _key(value: float) -> str:
    """Return a key that equal values share. TensorBoard stores 32 bits, as `array` does; NaN equals itself."""
    return repr(value + 0.0)


def _points(counts: Counter[str]) -> str:
    total, (name, *others) = counts.total(), counts
    metrics = repr(name) if not others else f"{name!r} and {len(others)} other metric{'s'[: len(others) > 1]}"
    return f"{total} point{'s'[: total > 1]} of {metrics}"


def _data(counts: Counter[str]) -> dict[str, Any]:
    named = [{"metric": name, "count": count} for name, count in counts.most_common(_MAX_NAMED)]
    return {"metrics": len(counts), "left_out": named}
