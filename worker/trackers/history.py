"""Reads from the spools which metrics earlier executions of a job logged, so that a resumed program continues their
steps."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.spool import SpoolCorruptError, parse_spool
from worker.core.program_output import newest_output
from worker.trackers.event_folders import EVENT_FILE_MARK
from worker.trackers.steps import MetricHistory

_MAX_BYTES = 256 * 1024 * 1024
"""Bytes of spools that are read, the newest first."""
_MAX_FILES = 10_000
_SPOOL = re.compile(r"execution-(\d{6})(?:\.node-\d+)?\.jsonl")


def read_history(layout: AttemptLayout, execution: int) -> dict[str, MetricHistory]:
    """Return the history of each metric in earlier executions."""
    written_at = newest_checkpoint(layout)
    known: dict[str, MetricHistory] = {}
    for path in _spools(layout, execution):
        for name, one in _read_spool(path, written_at).items():
            known[name] = one if name not in known else one.joined(known[name])
    return known


def newest_checkpoint(layout: AttemptLayout) -> float | None:
    """Return when the newest file of a program's checkpoints was written, in seconds since 1970; None if there is none.

    Event files do not count: a program may write them to its checkpoint folder.
    """
    times = (_newest_file(RunLayout(layout.root.parent.parent).checkpoints), newest_output(layout))
    return max((time for time in times if time is not None), default=None)


def _newest_file(folder: Path) -> float | None:
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


def _spools(layout: AttemptLayout, execution: int) -> Iterator[Path]:
    """Yield the spools of earlier executions, the newest first, up to a size."""
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
        yield path


def _read_spool(path: Path, written_at: float | None) -> dict[str, MetricHistory]:
    """Return the history of each metric in a spool, up to a damaged record.

    Args:
        written_at: When the newest checkpoint was written, in seconds since 1970.
    """
    known: dict[str, MetricHistory] = {}
    with contextlib.suppress(OSError, SpoolCorruptError, ValueError, LookupError, TypeError, AttributeError):
        for record in parse_spool(path):
            if record.kind != "metrics":
                continue
            body = json.loads(record.body_text)
            for name in body.get("restarts", ()):
                known.pop(name, None)
            for point in body["points"]:
                name, step = point["key"], point["step"]
                if name.startswith(SYSTEM_PREFIXES):
                    break
                time = datetime.fromisoformat(point["time"]).timestamp()
                resumes_at = step + 1 if written_at is not None and time <= written_at else 0
                one = MetricHistory(step, resumes_at, step, time)
                known[name] = one if name not in known else one.joined(known[name])
    return known
