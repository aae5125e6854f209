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
    until: float
    """The time of `time.monotonic` after which no further record is read."""
    on_record: Callable[[], None] = lambda: None
    """Called for each record."""

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
            if not self.left or time.monotonic() > self.limit.until:
                self.is_reached = True
                return
            self.left -= 1
            self.limit.on_record()
            yield record
