"""A limit of what is read of each source, for a plan that reads only the first records."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class ReadLimit:
    """How much of each source is read."""

    records: int
    """Of each source, at most."""
    seconds: float
    """Time after the first record after which no further one is read."""
    on_record: Callable[[], None] = lambda: None
    """Called for each record."""
    _until: float | None = None

    def is_over(self) -> bool:
        """Return whether the time is over."""
        if self._until is None:
            self._until = time.monotonic() + self.seconds
        return time.monotonic() > self._until

    def of_source(self) -> "SourceLimit":
        """Return the limit of one source."""
        return SourceLimit(self, self.records)


@dataclass
class SourceLimit:
    """The limit of one source, whose records may come from several iterators."""

    limit: ReadLimit
    left: int
    """Records that may still be read."""
    is_reached: bool = False
    """Whether there are records that were not read."""

    def take(self, records: Iterable[T]) -> Iterator[T]:
        """Yield the records within the limit."""
        for record in records:
            if not self.left or self.limit.is_over():
                self.is_reached = True
                return
            self.left -= 1
            self.limit.on_record()
            yield record
