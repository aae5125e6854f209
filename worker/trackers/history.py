"""What earlier executions of a job logged, from their spools: where the counts of a resumed program continue."""

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.spool import SpoolCorruptError, parse_spool
from worker.trackers.event_folders import EVENT_FILE_MARK
from worker.trackers.steps import MetricHistory

_MAX_BYTES = 256 * 1024 * 1024
"""Bytes of spools that are read, the newest first."""
_MAX_FILES = 10_000
_SPOOL = re.compile(r"execution-(\d{6})(?:\.node-\d+)?\.jsonl")


def read_history(layout: AttemptLayout, execution: int) -> dict[str, MetricHistory]:
    """Return what executions before this one logged, by metric."""
    written_at = newest_checkpoint(RunLayout(layout.root.parent.parent).checkpoints)
    last: dict[str, int] = {}
    before: dict[str, int] = {}
    latest: dict[str, tuple[float, int]] = {}
    for name, step, time in _points(layout, execution):
        last[name] = max(step, last.get(name, 0))
        latest[name] = max((time, step), latest.get(name, (0.0, -1)))
        if written_at is not None and time <= written_at:
            before[name] = max(step, before.get(name, -1))
    return {
        name: MetricHistory(step, before.get(name, -1) + 1, latest[name][1], latest[name][0])
        for name, step in last.items()
    }


def newest_checkpoint(folder: Path) -> float | None:
    """Return when the newest file below a folder was written, in seconds since 1970; None if there is no file.

    Event files do not count: a program may write them to its checkpoint folder.
    """
    newest: float | None = None
    counted = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            counted += 1
            if EVENT_FILE_MARK in name:
                continue
            try:
                written = os.stat(os.path.join(parent, name)).st_mtime
            except OSError:
                continue
            newest = written if newest is None else max(newest, written)
        if counted > _MAX_FILES:
            break
    return newest


def _points(layout: AttemptLayout, execution: int) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and time of the points of earlier executions."""
    paths = [
        path
        for path in layout.root.parent.glob("*/spool/*.jsonl")
        if (match := _SPOOL.fullmatch(path.name)) and int(match[1]) < execution
    ]
    room = _MAX_BYTES
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        size = path.stat().st_size
        room -= size
        if room < 0:
            return
        yield from _points_of(path)


def _points_of(path: Path) -> Iterator[tuple[str, int, float]]:
    try:
        for record in parse_spool(path):
            if record.kind == "metrics":
                for point in json.loads(record.body_text)["points"]:
                    if point["key"].startswith(SYSTEM_PREFIXES):
                        break
                    yield point["key"], point["step"], datetime.fromisoformat(point["time"]).timestamp()
    except (OSError, SpoolCorruptError, ValueError, LookupError, TypeError, AttributeError):
        return
