"""Events of an earlier attempt that its launcher had not read when it was killed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers.earlier_attempt import EarlierAttempt
from worker.trackers.event_folders import event_paths
from worker.trackers.event_messages import decode_event
from worker.trackers.event_records import DamagedRecordError, read_records
from worker.trackers.event_runs import EventRuns, begun_at
from worker.trackers.journal import TrackedValue
from worker.trackers.steps import MetricHistory
from worker.trackers.tracker_requests import Reporter, TrackerError
from worker.trackers.wire_format import MalformedMessageError


@dataclass(frozen=True)
class EventRemainder:
    """The unread events of the previous attempt."""

    folders: list[Path]
    attempt: EarlierAttempt
    submitted_at: float
    """When that attempt was submitted, in seconds since 1970. Its folders have files of earlier attempts too."""

    @classmethod
    def find(cls, layout: AttemptLayout) -> "EventRemainder | None":
        """Return the unread events; None without an earlier attempt or a checkpoint. Call before the program starts."""
        earlier = EarlierAttempt.find(layout)
        if earlier is None:
            return None
        checkpoints = RunLayout(layout.root.parent.parent).checkpoints
        launch = earlier.layout.launch
        submitted_at = launch.stat().st_mtime if launch.exists() else 0.0
        return cls([earlier.layout.code, layout.work, checkpoints], earlier, submitted_at)

    def values(self, known: Callable[[TrackedValue], MetricHistory | None]) -> Iterator[TrackedValue]:
        """Yield the scalars that follow the last point of their metric and precede the checkpoint."""
        return self.attempt.unread(self._scalars(), known)

    def _scalars(self) -> Iterator[TrackedValue]:
        paths = [(begun_at(one.path), len(one.path.parts), one.path) for one in event_paths(self.folders)]
        files = [one for one in paths if one[0] >= self.submitted_at]
        runs, folders = EventRuns(), {path.parent for _, _, path in files}
        for _, _, path in sorted(files):
            try:
                yield from _scalars(path, runs.prefix(Reporter(0, 0), path.parent, folders))
            except (OSError, DamagedRecordError, TrackerError):
                continue


def _scalars(path: Path, prefix: str) -> Iterator[TrackedValue]:
    plugins: dict[str, str] = {}
    for record in read_records(path):
        try:
            event = decode_event(record.message, plugins)
            time = datetime.fromtimestamp(event.time, UTC)
        except (MalformedMessageError, ValueError, OverflowError, OSError):
            continue
        for tag, value in event.scalars:
            yield TrackedValue(prefix + tag, value, event.step, time, prefix)
