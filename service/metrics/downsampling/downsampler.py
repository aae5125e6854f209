"""Keeping curves thinned as their points arrive: a thread that folds what is new of a job into its buckets."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import structlog

from service.core.errors import UnavailableError
from service.db.engine import Database
from service.metrics.downsampling.buckets import Arrival, Kept, merge, spacing, stand_outs
from service.metrics.downsampling.levels import LEVELS, width_shift
from service.metrics.ingest.repository import InsertResult
from service.metrics.repository import CurveRepository, Mark, Place

FOLD_AT = 8192
"""Points of a job that may wait: a reader has to look through them."""
_AT_ONCE = 40_000
_IDLE_SECONDS = 5.0
_PAUSE_SECONDS = 2.0
"""After the database did not answer."""


def fold(database: Database, job_pk: int) -> int:
    """Fold the next points of a job into its buckets.

    Returns:
        How many; 0 when nothing waits or another process was at it.
    """
    with database.read() as session:
        curves = CurveRepository(session, database)
        known = curves.mark(job_pk)
        points = _whole(curves.pending(job_pk, known.sequence if known else 0, _AT_ONCE))
        if not points:
            return 0
        mark = known or Mark(0, _spacing(points))
        up_to = points[-1][-1]
        gone, kept = _changes(curves, job_pk, mark.shift, points)
    with database.write() as session:
        curves = CurveRepository(session, database)
        if known is None:
            curves.start_mark(job_pk, mark.shift)
        if not curves.advance(job_pk, mark.sequence, up_to):
            return 0
        curves.replace(job_pk, gone, kept)
    return len(points)


def _whole(points: list[Arrival]) -> list[Arrival]:
    """Without a last batch that may go on beyond the limit."""
    if len(points) < _AT_ONCE:
        return points
    last = points[-1][-1]
    return [point for point in points if point[-1] < last] or points


def _spacing(points: Sequence[Arrival]) -> int:
    by_key: dict[int, list[int]] = {}
    for key_pk, _, step, *_ in points:
        by_key.setdefault(key_pk, []).append(step)
    _, longest = max((len(steps), key_pk) for key_pk, steps in by_key.items())
    return spacing(by_key[longest])


def _changes(
    curves: CurveRepository, job_pk: int, shift: int, points: Sequence[Arrival]
) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]:
    gone: list[tuple[int, ...]] = []
    put: list[tuple[Any, ...]] = []
    finest = width_shift(0, shift)
    series = {key: stand_outs(sorted(group), finest) for key, group in _by_series(points).items()}
    kept = curves.kept(job_pk, [place for key, fresh in series.items() for place in _places(key, fresh, shift)])
    for (key_pk, execution), fresh in series.items():
        for level in range(LEVELS):
            before = kept[key_pk, level, execution]
            fresh, lost = merge(before, fresh, width_shift(level, shift))
            there = {point.step for point in before}
            gone += [(key_pk, level, point.step, execution) for point in lost]
            put += [(key_pk, level, point.step, execution, *point[1:]) for point in fresh if point.step not in there]
    return gone, put


def _by_series(points: Iterable[Arrival]) -> dict[tuple[int, int], list[Arrival]]:
    found: dict[tuple[int, int], list[Arrival]] = {}
    for point in points:
        found.setdefault(point[:2], []).append(point)
    return found


def _places(series: tuple[int, int], fresh: Sequence[Kept], shift: int) -> Iterator[Place]:
    """The whole buckets of each level between the first and the last fresh point."""
    for level in range(LEVELS):
        bits = width_shift(level, shift)
        first, last = fresh[0].step >> bits << bits, ((fresh[-1].step >> bits) + 1 << bits) - 1
        yield Place(series[0], level, series[1], first, last)


class Thinner:
    """Told of what was stored, it folds a job's points once enough of them wait. Its thread ends when idle."""

    def __init__(self, database: Database, *, at: int = FOLD_AT):
        """`at`: how many points of a job may wait."""
        self._database = database
        self._at = at
        self._waiting: dict[int, int] = {}
        self._due: dict[int, None] = {}
        self._changed = threading.Condition()
        self._running = False

    def stored(self, batches: Sequence[InsertResult]) -> None:
        """Points are in the database. Of a job that is new to this process, some may wait that were not counted."""
        with self._changed:
            for batch in batches:
                count = self._waiting.get(batch.job_pk, self._at // 2) + batch.inserted
                self._waiting[batch.job_pk] = count
                if count >= self._at:
                    self._waiting[batch.job_pk] = 0
                    self._due[batch.job_pk] = None
            if not self._due:
                return
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="thinner", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while (job_pk := self._next()) is not None:
            try:
                while fold(self._database, job_pk) >= self._at:
                    pass
            except UnavailableError:
                with self._changed:
                    self._due[job_pk] = None
                    self._changed.wait(_PAUSE_SECONDS)
            except Exception as error:
                structlog.get_logger("curves").error("points were not thinned", job_pk=job_pk, exc_info=error)

    def _next(self) -> int | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._due, _IDLE_SECONDS):
                self._running = False
                return None
            return self._due.popitem()[0]
