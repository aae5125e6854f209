"""A job's curves as they are asked for: from the points where few, from the buckets where many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from service.db.engine import Database
from service.db.types import from_micros
from service.jobs.repository import JobRepository
from service.reports.curves.axes import Axis, Placed, Stretch, tokens_seen, training_seconds
from service.reports.curves.cover import ENDLESS, RAW, choose_level, cover, visible
from service.reports.curves.repository import CurveRepository, Mark, RawPoint
from service.reports.points.values import decode_value
from service.reports.series import thin
from trainyard.contract.curves import CurveAxis, MetricsResource, Series


class CurvePoint(NamedTuple):
    """A point of one curve; the time is in microseconds."""

    step: int
    execution: int
    value: float
    time: int


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
        InvalidRequestError: it has no such axis.
    """
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        reader = _Reader(CurveRepository(session, database), job.no, wanted)
        axis: Axis | None = None
        if wanted.axis == "tokens":
            axis = tokens_seen(job.id, job.spec, job.latest)
        elif wanted.axis == "time":
            axis = training_seconds(reader.stretches())
        series = [reader.series(name, axis) for name in reader.names()]
    return MetricsResource(job_id=job_id, axis=wanted.axis, series=series)


_PACEMAKER = "train/loss"


def _on(axis: Axis | None, points: list[CurvePoint]) -> tuple[list[CurvePoint], list[float] | None]:
    """The points that lie on the axis, and where."""
    if axis is None:
        return points, None
    placed = [(point, axis(point.step, point.execution, point.time)) for point in points]
    there = [(point, x) for point, x in placed if x is not None]
    return [point for point, _ in there], [x for _, x in there]


class _Reader:
    """The curves of one job, in one session."""

    def __init__(self, repository: CurveRepository, job_no: int, wanted: Wanted):
        self._repository = repository
        self._job_no = job_no
        self._wanted = wanted
        self._numbers = repository.keys(job_no)
        self._resumed = repository.executions(job_no)
        self._mark = repository.mark(job_no) or Mark(0, 0)
        chosen = {self._numbers[name] for name in self.names() if name in self._numbers}
        self._tail: dict[int, list[RawPoint]] = {}
        if self._mark.sequence:
            for point in repository.tail(job_no, chosen, self._mark.sequence):
                self._tail.setdefault(point.key_no, []).append(point)

    def names(self) -> Sequence[str]:
        return self._wanted.keys or tuple(self._numbers)

    def stretches(self) -> Iterator[Stretch]:
        """What is seen of each execution, in order. One metric tells for all: the loss, where there is one."""
        key_no = self._numbers.get(_PACEMAKER, next(iter(self._numbers.values()), None))
        if key_no is None:
            return
        for execution, first, last in sorted(visible(self._resumed, 0, ENDLESS)):
            ends = self._repository.ends(self._job_no, key_no, execution, (first, last), raw=not self._mark.raw_deleted)
            if ends:
                yield Stretch(execution, self._resumed[execution], *(Placed(*end) for end in ends))

    def series(self, name: str, axis: Axis | None) -> Series:
        key_no = self._numbers.get(name)
        points, reduced = ([], False) if key_no is None else self._points(key_no)
        kept, places = _on(axis, thin(points, self._wanted.max_points))
        return Series(
            key=name,
            steps=[point.step for point in kept],
            values=[point.value for point in kept],
            times=[from_micros(point.time) for point in kept],
            x=places,
            truncated=reduced or len(kept) < len(points),
        )

    def _level(self, key_no: int) -> int:
        wanted, mark, job_no = self._wanted, self._mark, self._job_no
        if not mark.sequence:
            return RAW
        steps = wanted.from_step, wanted.to_step
        if not mark.raw_deleted and self._repository.few(job_no, key_no, *steps, wanted.max_points):
            return RAW
        span = min(self._repository.span(job_no, key_no, raw=not mark.raw_deleted), steps[1] - steps[0] + 1)
        return max(0 if mark.raw_deleted else RAW, choose_level(span, mark.shift, wanted.max_points))

    def _points(self, key_no: int) -> tuple[list[CurvePoint], bool]:
        wanted, mark = self._wanted, self._mark
        finest, level = 0 if mark.raw_deleted else RAW, self._level(key_no)
        found: set[CurvePoint] = set()
        for execution, first, last in visible(self._resumed, wanted.from_step, wanted.to_step):
            for piece in cover(execution, first, last, level, mark.shift, finest=finest):
                rows = self._repository.piece(self._job_no, key_no, piece)
                found.update(CurvePoint(row[0], row[1], decode_value(row[2], row[3]), row[4]) for row in rows)
            for raw in self._tail.get(key_no, ()) if level != RAW else ():
                if raw.execution == execution and first <= raw.step <= last:
                    found.add(CurvePoint(raw.step, execution, decode_value(raw.value, raw.special), raw.time))
        return sorted(found, key=itemgetter(0, 1)), level != RAW
