"""A thread that adds the new points of jobs to their buckets."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import structlog

from service.core.errors import UnavailableError
from service.db.engine import Database
from service.metrics.downsampling.buckets import (
    NewPoint,
    Sample,
    estimate_spacing_bits,
    merge_samples,
    sample_buckets,
    sample_new_points,
)
from service.metrics.downsampling.levels import LEVELS, NO_LEVEL, RangeRead, bucket_bits
from service.metrics.ingest.repository import InsertResult
from service.metrics.repository import BucketRange, CurveRepository, DownsampleCursor

MAX_PENDING_POINTS = 8192
"""A job's points are downsampled once this many are pending: every read must scan the pending points."""
_MAX_POINTS_PER_RUN = 40_000
_IDLE_SECONDS = 5.0
_RETRY_SECONDS = 2.0
"""Pause after the database did not answer."""


def downsample_job(database: Database, job_pk: int) -> int:
    """Add the next pending points of a job to its buckets.

    Returns:
        The number of points; 0 if none was pending or another process was faster.
    """
    with database.read() as session:
        curves = CurveRepository(session, database)
        cursor = curves.cursor(job_pk)
        points = _without_partial_batch(
            curves.pending_points(job_pk, cursor.sequence if cursor else 0, _MAX_POINTS_PER_RUN)
        )
        if not points:
            return 0
        up_to = points[-1][-1]
        removed, added = _changes(curves, job_pk, cursor, points) if cursor else ([], [])
    if cursor is None:
        # Points that are deleted from now on change the cursor, so that the next run notices.
        with database.write() as session:
            CurveRepository(session, database).start_cursor(job_pk, _spacing_bits(points))
        return downsample_job(database, job_pk)
    with database.write() as session:
        curves = CurveRepository(session, database)
        if not curves.advance_cursor(job_pk, cursor, up_to):
            return 0
        curves.replace_samples(job_pk, removed, added)
    return len(points)


def _without_partial_batch(points: list[NewPoint]) -> list[NewPoint]:
    """Leave out the last batch of a full read, because it may continue beyond the limit."""
    if len(points) < _MAX_POINTS_PER_RUN:
        return points
    last = points[-1][-1]
    return [point for point in points if point[-1] < last] or points


def _spacing_bits(points: Sequence[NewPoint]) -> int:
    by_key: dict[int, list[int]] = {}
    for key_pk, _, step, *_ in points:
        by_key.setdefault(key_pk, []).append(step)
    _, longest = max((len(steps), key_pk) for key_pk, steps in by_key.items())
    return estimate_spacing_bits(by_key[longest])


def _changes(
    curves: CurveRepository, job_pk: int, cursor: DownsampleCursor, points: Sequence[NewPoint]
) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]:
    """Return the rows to remove and to add, at all levels."""
    removed: list[tuple[int, ...]] = []
    added: list[tuple[Any, ...]] = []
    spacing_bits = cursor.spacing_bits
    bits = bucket_bits(0, spacing_bits)
    pending = _by_series(points)
    series = {key: sample_new_points(sorted(group), bits) for key, group in pending.items()}
    ranges = [sample for key, new in series.items() for sample in _bucket_ranges(key, new, spacing_bits)]
    samples = curves.samples(job_pk, ranges)
    for (key_pk, execution), new in series.items():
        existing = [samples[key_pk, level, execution] for level in range(LEVELS)]
        steps = {point[2] for point in pending[key_pk, execution]}
        # A former value that is no sample of the lowest level is none of the others, and can go unnoticed.
        repeated = {sample.step >> bits for sample in existing[0] if sample.step in steps}
        if repeated and not cursor.raw_deleted:
            store = _Series(curves, job_pk, key_pk, execution)
            levels = _sample_again(store, existing[0], new, repeated, spacing_bits)
        else:
            levels = _merge(existing, new, spacing_bits)
        for level, selected in enumerate(levels):
            width, known, chosen = bucket_bits(level, spacing_bits), set(existing[level]), set(selected)
            changed = {sample.step >> width for sample in selected}
            dropped = [one for one in known - chosen if one.step >> width in changed]
            removed += [(key_pk, level, sample.step, execution) for sample in dropped]
            added += [
                (key_pk, level, sample.step, execution, *sample[1:]) for sample in selected if sample not in known
            ]
    return removed, added


def _merge(existing: Sequence[Sequence[Sample]], new: list[Sample], spacing_bits: int) -> Iterator[list[Sample]]:
    """Yield the samples of the changed buckets of each level, with new points of other steps."""
    for level, known in enumerate(existing):
        new = merge_samples(known, new, bucket_bits(level, spacing_bits))
        yield new


class _Series(NamedTuple):
    """The stored points and samples of a metric in an execution."""

    curves: CurveRepository
    job_pk: int
    key_pk: int
    execution: int

    def points(self, first: int, last: int) -> list[Sample]:
        """Return the points of these steps, in no order."""
        read = RangeRead(self.execution, NO_LEVEL, first, last)
        rows = self.curves.read_ranges(self.job_pk, self.key_pk, [read])
        return [Sample(step, value, special, time) for step, _, value, special, time in rows]

    def samples(self, level: int, first: int, last: int) -> list[Sample]:
        """Return the samples of these steps, in no order."""
        bucket_range = BucketRange(self.key_pk, level, self.execution, first, last)
        return self.curves.samples(self.job_pk, [bucket_range])[bucket_range[:3]]


def _sample_again(
    series: _Series, existing: Sequence[Sample], new: list[Sample], repeated: set[int], spacing_bits: int
) -> Iterator[list[Sample]]:
    """Yield the samples of the changed buckets of each level, computed without the former values of repeated steps.

    Args:
        existing: The samples of the lowest level.
        repeated: The buckets of the lowest level that have such values.
    """
    bits = bucket_bits(0, spacing_bits)
    points = [
        point for first, last in _runs(repeated) for point in series.points(first << bits, (last + 1 << bits) - 1)
    ]
    new = [sample for sample in merge_samples(existing, new, bits) if sample.step >> bits not in repeated]
    new = sorted([*new, *sample_buckets(sorted(points), bits)])
    yield new
    for level in range(1, LEVELS):
        lower, bits = bits, bucket_bits(level, spacing_bits)
        changed, known = {sample.step >> lower for sample in new}, []
        for first, last in _runs({sample.step >> bits for sample in new}):
            known += series.samples(level - 1, first << bits, (last + 1 << bits) - 1)
        new = sample_buckets(sorted([*new, *(one for one in known if one.step >> lower not in changed)]), bits)
        yield new


def _runs(buckets: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last bucket of each run of adjacent buckets."""
    runs: list[tuple[int, int]] = []
    for bucket in sorted(buckets):
        if runs and runs[-1][1] == bucket - 1:
            runs[-1] = (runs[-1][0], bucket)
        else:
            runs.append((bucket, bucket))
    return runs


def _by_series(points: Iterable[NewPoint]) -> dict[tuple[int, int], list[NewPoint]]:
    series: dict[tuple[int, int], list[NewPoint]] = {}
    for point in points:
        series.setdefault(point[:2], []).append(point)
    return series


def _bucket_ranges(series: tuple[int, int], new: Sequence[Sample], spacing_bits: int) -> Iterator[BucketRange]:
    """Yield the whole buckets of each level between the first and the last new sample."""
    for level in range(LEVELS):
        bits = bucket_bits(level, spacing_bits)
        first, last = new[0].step >> bits << bits, ((new[-1].step >> bits) + 1 << bits) - 1
        yield BucketRange(series[0], level, series[1], first, last)


class Downsampler:
    """Downsamples a job's points once enough of them are pending. Its thread ends when idle."""

    def __init__(self, database: Database, *, max_pending: int = MAX_PENDING_POINTS):
        self._database = database
        self._max_pending = max_pending
        self._pending: dict[int, int] = {}
        self._due: dict[int, None] = {}
        self._changed = threading.Condition()
        self._running = False

    def on_commit(self, batches: Sequence[InsertResult]) -> None:
        """Count points that were committed. A job that is new to this process may have uncounted pending points."""
        with self._changed:
            for batch in batches:
                count = self._pending.get(batch.job_pk, self._max_pending // 2) + batch.stored
                self._pending[batch.job_pk] = count
                if count >= self._max_pending:
                    self._pending[batch.job_pk] = 0
                    self._due[batch.job_pk] = None
            if not self._due:
                return
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="downsampler", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while (job_pk := self._next_job()) is not None:
            try:
                if downsample_job(self._database, job_pk) >= self._max_pending:
                    with self._changed:  # behind the other jobs: one that reports without pause must not stop them
                        self._due[job_pk] = None
            except UnavailableError:
                with self._changed:
                    self._due[job_pk] = None
                    self._changed.wait(_RETRY_SECONDS)
            except Exception as error:
                structlog.get_logger("curves").error("downsampling failed", job_pk=job_pk, exc_info=error)

    def _next_job(self) -> int | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._due, _IDLE_SECONDS):
                self._running = False
                return None
            job_pk = next(iter(self._due))
            del self._due[job_pk]
            return job_pk
