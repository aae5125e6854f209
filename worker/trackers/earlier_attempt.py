"""Values that an earlier attempt's launcher had not read when it was killed, up to its program's checkpoint.

A program that resumes logs the values after the checkpoint again; earlier values are only in the files of trackers.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from worker.trackers.history import newest_checkpoint
from worker.trackers.journal import TrackedValue
from worker.trackers.steps import MetricHistory


@dataclass(frozen=True)
class EarlierAttempt:
    """The previous attempt."""

    layout: AttemptLayout
    saved_at: float
    """When the newest checkpoint was written, in seconds since 1970."""

    @classmethod
    def find(cls, layout: AttemptLayout) -> "EarlierAttempt | None":
        """Return the previous attempt; None without an attempt or a checkpoint. Called before the program starts."""
        earlier = layout.earlier()
        saved_at = newest_checkpoint(layout)
        return cls(earlier[0], saved_at) if earlier and saved_at is not None else None

    def path_now(self, path: str) -> Path:
        """Return the present path of a file of that attempt: only the program's output has moved to this attempt."""
        now = Path(path)
        if not now.exists() and now.is_relative_to(self.layout.work):
            return self.layout.code / now.relative_to(self.layout.work)
        return now

    def unread(
        self, values: Iterable[TrackedValue], known: Callable[[TrackedValue], MetricHistory | None]
    ) -> Iterator[TrackedValue]:
        """Yield the values that follow the last point of their metric and precede the checkpoint, each step once.

        Args:
            known: Returns the history of a value's metric in earlier executions; None: the value is left out.
        """
        yielded: set[tuple[str, int | None]] = set()
        for value in values:
            if (value.name, value.step) not in yielded and self._is_unread(value, known(value)):
                yielded.add((value.name, value.step))
                yield value

    def _is_unread(self, value: TrackedValue, known: MetricHistory | None) -> bool:
        return (
            known is not None
            and value.step is not None
            and known.latest_at < value.time.timestamp() <= self.saved_at
            and value.step > known.latest_step
        )
