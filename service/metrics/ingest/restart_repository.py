"""All SQL for curves that begin again: the points that an execution reported before are deleted, with their samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from service.core.positions import SPOOL_SHIFT, first_position
from service.db.raw import RawTransaction
from service.metrics.downsampling.buckets import Sample, sample_levels
from service.metrics.ingest.repository import AcceptedBatch
from service.metrics.values import PointRow

CURVES_RESTARTED = "curves_restarted"
"""Type of the event; a client that follows the stream must read these curves again."""
MAX_NAMED = 20
"""Metrics that an event names."""

_DELETE_POINTS = (
    "DELETE FROM points WHERE job_pk = ? AND key_pk = ? AND execution = ? AND position >= ? AND position < ?"
)
_DELETE_SAMPLES = "DELETE FROM downsampled_points WHERE job_pk = ? AND key_pk = ? AND execution = ?"
_REMAINING = (
    "SELECT step, value, special, time FROM points"
    " WHERE job_pk = ? AND key_pk = ? AND execution = ? AND sequence <= ? ORDER BY step"
)
_LAST = (
    "SELECT step, value, special, time, position FROM points"
    " WHERE job_pk = ? AND key_pk = ? AND execution = ? ORDER BY step DESC LIMIT 1"
)
_ADD_SAMPLES = (
    "INSERT INTO downsampled_points (job_pk, key_pk, level, step, execution, value, special, time)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SAVE_RESTART = (
    "INSERT INTO curve_revisions (job_pk, execution, key_pk, spool, repeats, restart, sequence)"
    " VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT (job_pk, execution, key_pk, spool) DO UPDATE SET"
    " restart = excluded.restart, sequence = excluded.sequence"
)
_ADD_EVENT = (
    "INSERT INTO events (job_pk, sequence, type, level, message, data, created_at, execution)"
    " VALUES (?, ?, ?, 'info', ?, {}, ?, ?)"
)


class RestartRepository:
    """Writes within the transaction that stores the points; the jobs of the batches are locked."""

    def __init__(self, transaction: RawTransaction):
        self._transaction = transaction

    def restart(self, batch: AcceptedBatch, keys: Mapping[str, int], now: int) -> list[PointRow]:
        """Delete the points that the restarts of a batch make void, add an event, and return the last point of each
        curve, if any.

        Args:
            keys: The number of each metric.
            now: Time in microseconds.
        """
        job_pk, execution = batch.job.pk, batch.execution
        # It also waits for a run of the downsampler that writes, and makes a run fail that has read the points.
        update = (
            "UPDATE downsample_states SET revision = revision + 1 WHERE job_pk = ? RETURNING sequence, spacing_bits"
        )
        states = self._transaction.execute(update, (job_pk,)).fetchall()
        last: list[PointRow] = []
        for name, position in batch.restarts.items():
            key, spool = keys[name], position >> SPOOL_SHIFT
            series = (job_pk, key, execution)
            self._transaction.execute(_DELETE_POINTS, (*series, first_position(spool, 0), position))
            if states:
                self._sample_again(series, *states[0])
            self._transaction.execute(_SAVE_RESTART, (job_pk, execution, key, spool, position, batch.sequence))
            last += [(name, *row) for row in self._transaction.execute(_LAST, series).fetchall()]
        self._add_event(batch, sorted(batch.restarts), now)
        return last

    def _sample_again(self, series: tuple[int, int, int], sequence: int, spacing_bits: int) -> None:
        """Sample a series again, from its points up to a number of the job's sequence."""
        self._transaction.execute(_DELETE_SAMPLES, series)
        points = [Sample(*row) for row in self._transaction.execute(_REMAINING, (*series, sequence)).fetchall()]
        job_pk, key, execution = series
        rows: Sequence[tuple[Any, ...]] = [
            (job_pk, key, level, sample.step, execution, *sample[1:])
            for level, samples in enumerate(sample_levels(points, spacing_bits))
            for sample in samples
        ]
        self._transaction.execute_many(_ADD_SAMPLES, rows)

    def _add_event(self, batch: AcceptedBatch, names: Sequence[str], now: int) -> None:
        shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
        message = f"The program begins {'the curve' if len(names) == 1 else 'curves'} of {shown} again"
        data = msgspec.json.encode({"metrics": names[:MAX_NAMED], "count": len(names)}).decode()
        insert = _ADD_EVENT.format("?" if self._transaction.is_sqlite else "?::jsonb")
        values = (batch.job.pk, batch.sequence, CURVES_RESTARTED, message, data, now, batch.execution)
        self._transaction.execute(insert, values)
