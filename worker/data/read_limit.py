"""Limits how much of each source a plan reads."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from worker.core.errors import RefusedError

T = TypeVar("T")


@dataclass
class ReadLimit:
    """Limits how much of each source is read."""

    records: int
    """Maximum number of records of each source."""
    seconds: float
    """Reading stops this long after the first record."""
    on_record: Callable[[], None] = lambda: None
    """Called for each record."""
    refusals: list[RefusedError] = field(default_factory=list)
    """The errors of refused sources; later sources are still read."""
    _until: float | None = None

    def is_over(self) -> bool:
        """Return whether the time is over."""
        if self._until is None:
            self._until = time.monotonic() + self.seconds
        return time.monotonic() > self._until

    def of_source(self) -> "SourceLimit":
        """Return the limit of a source."""
        return SourceLimit(self, self.records)


@contextmanager
def refused_later(limit: ReadLimit | None) -> Iterator[None]:
    """Let a plan read the next source although the source of this block is refused; see `raise_refusals`."""
    try:
        yield
    except RefusedError as error:
        if limit is None:
            raise
        limit.refusals.append(error)


def raise_refusals(limit: ReadLimit | None) -> None:
    """Raise RefusedError if the limit has refusals."""
    if limit is not None and limit.refusals:
        hint = next((error.hint for error in limit.refusals if error.hint), None)
        raise RefusedError("; ".join(map(str, limit.refusals)), hint)


@dataclass
class SourceLimit:
    """The limit of a source, whose records may come from several iterators."""

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
