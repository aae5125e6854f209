"""Events that an earlier attempt's launcher had not read when it was killed, up to its program's checkpoint.

A program that resumes logs what follows the checkpoint again; what came before it is only in these files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.stored_name import metric_name
from worker.trackers.answers import Reporter, TrackerError
from worker.trackers.event_folders import event_paths
from worker.trackers.event_messages import decode_event
from worker.trackers.event_records import DamagedRecordError, read_records
from worker.trackers.event_runs import EventRuns, begun_at
from worker.trackers.history import newest_checkpoint
from worker.trackers.journal import TrackedValue
from worker.trackers.steps import MetricHistory
from worker.trackers.wire_format import MalformedMessageError


@dataclass(frozen=True)
class EventRemainder:
    """The unread events of the attempt before this one."""

    folders: list[Path]
    saved_at: float
    """When the newest checkpoint was written, in seconds since 1970."""

    @classmethod
    def find(cls, layout: AttemptLayout) -> "EventRemainder | None":
        """Return where they are, if there is an earlier attempt and a checkpoint. Called before the program starts."""
        run = RunLayout(layout.root.parent.parent)
        own = _number(layout.root)
        earlier = [path for path in run.attempts.glob("*-*") if _number(path) < own]
        saved_at = newest_checkpoint(run.checkpoints)
        if not earlier or saved_at is None:
            return None
        previous = AttemptLayout(max(earlier, key=lambda path: (_number(path), path.stat().st_mtime)))
        return cls([previous.code if previous.code.is_dir() else previous.root, run.checkpoints], saved_at)

    def values(self, history: Mapping[str, MetricHistory]) -> Iterator[TrackedValue]:
        """Yield the scalars that follow the last point of their metric and precede the checkpoint.

        Args:
            history: What is known of earlier executions; the metrics that it lacks are taken if it is empty.
        """
        files = [(begun_at(one.path), len(one.path.parts), one.path) for one in event_paths(self.folders)]
        runs, folders = EventRuns(), {path.parent for _, _, path in files}
        yielded: set[tuple[str, int | None]] = set()
        for _, _, path in sorted(files):
            try:
                for value in _scalars(path, runs.prefix(Reporter(0, 0), path.parent, folders)):
                    if (value.name, value.step) not in yielded and self._is_unread(value, history):
                        yielded.add((value.name, value.step))
                        yield value
            except (OSError, DamagedRecordError, TrackerError):
                continue

    def _is_unread(self, value: TrackedValue, history: Mapping[str, MetricHistory]) -> bool:
        known = history.get(metric_name(value.name), None if history else MetricHistory(0, 0))
        return (
            known is not None
            and value.step is not None
            and known.latest_at < value.time.timestamp() <= self.saved_at
            and value.step > known.latest_step
        )


def _scalars(path: Path, prefix: str) -> Iterator[TrackedValue]:
    plugins: dict[str, str] = {}
    for record in read_records(path):
        try:
            event = decode_event(record.message, plugins)
            time = datetime.fromtimestamp(event.time, UTC)
        except (MalformedMessageError, ValueError, OverflowError, OSError):
            continue
        for tag, value in event.scalars:
            yield TrackedValue(prefix + tag, value, event.step, time)


def _number(folder: Path) -> int:
    number = folder.name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0
