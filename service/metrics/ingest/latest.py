"""The newest value of each metric, as a list of jobs shows it. Pure."""

from collections.abc import Sequence
from typing import Any

from service.metrics.ingest.decoding import Row
from service.metrics.values import decode_value


def newest(rows: Sequence[Row]) -> dict[str, Any]:
    """The value of each key at its highest step, as JSON has it."""
    found: dict[str, Row] = {}
    for row in rows:
        before = found.get(row[0])
        if before is None or row[1] >= before[1]:
            found[row[0]] = row
    return {key: row[2] if row[3] == 0 else _word(decode_value(None, row[3])) for key, row in found.items()}


def _word(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
