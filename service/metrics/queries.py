"""A job's curves as they are asked for: from the points where few, from the buckets where many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from service.db.engine import Database
from service.db.types import from_micros
from service.jobs.repository import JobRepository
from service.metrics.downsampling.levels import ENDLESS, RAW, choose_level, cover, visible
from service.metrics.downsampling.minmax import thin
from service.metrics.repository import CurveRepository, CurveRow, Mark
from service.metrics.values import decode_value
from service.metrics.x_axis import Axis, Placed, Stretch, tokens_seen, training_seconds
from trainyard.contract.wire.curves import CurveAxis, MetricsResource, Series


@dataclass(frozen=True)
class Wanted:
    """What of the curves is wanted."""

    keys: Sequence[str] = ()
    """All where empty."""
    from_step: int = 0
    to_step: int = ENDLESS
    max_points: int = 2000
    axis: CurveAxis = "step"


def read_curves(database: Database, job_id: str, wanted: Wanted, now: datetime) -> MetricsResource:
    """The curves of one job. A key that the job does not have gives an empty series.

    Raises:
        NotFoundError: there is no such job.
        ConflictError: it has no such axis.
    """
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        reader = _Reader(CurveRepository(session, database), job.pk, wanted)
        axis: Axis | None = None
        if wanted.axis == "tokens":
            axis = tokens_seen(job.id, job.spec, job.latest)
        elif wanted.axis == "time":
            axis = training_seconds(reader.stretches())
        series = [reader.series(name, axis) for name in reader.names()]
    return MetricsResource(job_id=job_id, axis=wanted.axis, series=series)


_PACEMAKER = "train/loss"


def _on(axis: Axis | None, rows: Sequence[CurveRow], kept: list[int]) -> tuple[list[int], list[float] | None]:
    """The places of the rows that lie on the axis, and where they lie there."""
    if axis is None:
        return kept, None
    placed = [(place, axis(rows[place][0], rows[place][1], rows[place][4])) for place in kept]
    there = [(place, x) for place, x in placed if x is not None]
    return [place for place, _ in there], [x for _, x in there]


class _Reader:
    """The curves of one job, in one session."""

    def __init__(self, repository: CurveRepository, job_pk: int, wanted: Wanted):
        self._repository = repository
        self._job_pk = job_pk
        self._wanted = wanted
        self._numbers = repository.keys(job_pk)
        self._resumed = repository.executions(job_pk)
        self._mark = repository.mark(job_pk) or Mark(0, 0)
        chosen = {self._numbers[name] for name in wanted.keys if name in self._numbers} if wanted.keys else None
        self._tail: dict[int, list[CurveRow]] = {}
        if self._mark.sequence and chosen != set():
            self._tail = repository.tail(job_pk, chosen, self._mark.sequence)

    def names(self) -> Sequence[str]:
        return self._wanted.keys or tuple(self._numbers)

    def stretches(self) -> Iterator[Stretch]:
        """What is seen of each execution, in order. One metric tells for all: the loss, where there is one."""
        key_pk = self._numbers.get(_PACEMAKER, next(iter(self._numbers.values()), None))
        if key_pk is None:
            return
        for execution, first, last in sorted(visible(self._resumed, 0, ENDLESS)):
            ends = self._repository.ends(self._job_pk, key_pk, execution, (first, last), raw=not self._mark.raw_deleted)
            if ends:
                yield Stretch(execution, self._resumed[execution], *(Placed(*end) for end in ends))

    def series(self, name: str, axis: Axis | None) -> Series:
        key_pk = self._numbers.get(name)
        rows, reduced = ([], False) if key_pk is None else self._points(key_pk)
        steps = [row[0] for row in rows]
        values = [row[2] if row[2] is not None else decode_value(None, row[3]) for row in rows]
        kept = thin(steps, values, self._wanted.max_points)
        kept, x = _on(axis, rows, kept)
        return Series(
            key=name,
            steps=[steps[place] for place in kept],
            values=[values[place] for place in kept],
            times=[from_micros(rows[place][4]) for place in kept],
            x=x,
            truncated=reduced or len(kept) < len(rows),
        )

    def _level(self, key_pk: int) -> int:
        wanted, mark, job_pk = self._wanted, self._mark, self._job_pk
        if not mark.sequence:
            return RAW
        steps = wanted.from_step, wanted.to_step
        if not mark.raw_deleted and self._repository.few(job_pk, key_pk, *steps, wanted.max_points):
            return RAW
        span = min(self._repository.span(job_pk, key_pk, raw=not mark.raw_deleted), steps[1] - steps[0] + 1)
        return max(0 if mark.raw_deleted else RAW, choose_level(span, mark.shift, wanted.max_points))

    def _points(self, key_pk: int) -> tuple[list[CurveRow], bool]:
        wanted, mark = self._wanted, self._mark
        finest, level = 0 if mark.raw_deleted else RAW, self._level(key_pk)
        seen = list(visible(self._resumed, wanted.from_step, wanted.to_step))
        pieces = [piece for part in seen for piece in cover(*part, level, mark.shift, finest=finest)]
        rows = self._repository.pieces(self._job_pk, key_pk, pieces)
        tail = self._tail.get(key_pk, ()) if level != RAW else ()
        for execution, first, last in seen if tail else ():
            rows += [row for row in tail if row[1] == execution and first <= row[0] <= last]
        # What is not folded yet may lie in a piece that was read from the points themselves.
        return sorted(dict.fromkeys(rows), key=itemgetter(0, 1)), level != RAW
