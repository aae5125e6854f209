"""Reading of a job's curves: short curves from the points, long curves from the buckets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

from service.db.engine import Database
from service.db.models import Job
from service.db.types import from_micros
from service.jobs.repository import JobRepository
from service.metrics.downsampling.levels import MAX_STEP, NO_LEVEL, choose_level, plan_reads, visible_ranges
from service.metrics.downsampling.minmax import downsample_minmax
from service.metrics.repository import CurveRepository, CurveRow, DownsampleCursor
from service.metrics.values import decode_value
from service.metrics.x_axis import TOKENS, Axis, ExecutionSpan, StepTime, check_token_axis, token_axis, training_seconds
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.curves import CurveAxis, MetricsResource, Series

_REFERENCE_METRIC = "train/loss"
"""The metric whose points define the times of a job's steps, if the job has it."""

MAX_SERIES = 500
"""Maximum number of series in a response about a job. CSV exports have all."""
_ENGINE_PREFIXES = ("train/", "eval/", "perf/", "memory/", "comm/")


@dataclass(frozen=True)
class CurveQuery:
    """Selects curves, a range of steps, the number of points and the x-axis."""

    keys: Sequence[str] = ()
    """Empty: all metrics."""
    from_step: int = 0
    to_step: int = MAX_STEP
    max_points: int = 2000
    axis: CurveAxis = "step"
    max_series: int = MAX_SERIES
    max_total: int = 1_000_000
    """Maximum number of points of all series together."""
    system: bool = False
    """Whether all metrics include the launchers' measurements of nodes, ranks and GPUs."""

    def select(self, names: Iterable[str]) -> Sequence[str]:
        """Return the selected metrics of a job that has these."""
        if self.keys:
            return self.keys
        return sorted((name for name in names if self.system or not name.startswith(SYSTEM_PREFIXES)), key=_order)

    def divided_among(self, jobs: int) -> "CurveQuery":
        """Return the query for each of several jobs in the same response, which share its limits."""
        return replace(self, max_series=min(MAX_SERIES, 2000 // jobs), max_total=self.max_total // jobs)


@dataclass(frozen=True)
class CurveState:
    """The common input for reading the curves of a job, which is read once per response."""

    job: Job
    keys: Mapping[str, int]
    """Primary keys of the selected metrics, by name."""
    resumed: Mapping[int, int]
    """The step that each execution resumed from."""
    cursor: DownsampleCursor
    pending: Mapping[int, Sequence[CurveRow]]
    """The points that are not in the buckets yet, by primary key of the metric."""


def read_state(repository: CurveRepository, job: Job, names: Sequence[str]) -> CurveState:
    """Return the state of the curves with these names; of all if there are none."""
    job_pk = job.pk
    keys = repository.keys(job_pk, names)
    cursor = repository.cursor(job_pk) or DownsampleCursor(0, 0)
    pending: dict[int, list[CurveRow]] = {}
    if cursor.sequence and (keys or not names):
        pending = repository.pending_by_key(job_pk, set(keys.values()) if names else None, cursor.sequence)
    return CurveState(job, keys, repository.executions(job_pk), cursor, pending)


def read_curves(
    database: Database, job_id: str, query: CurveQuery, now: datetime, state: CurveState | None = None
) -> MetricsResource:
    """Return the curves of a job, at most `MAX_SERIES`, the engine's metrics first.

    A key that the job does not have gives an empty series.

    Args:
        state: the state of the curves, if it was read before.

    Raises:
        NotFoundError: There is no such job.
        ConflictError: The job does not have the axis.
    """
    with database.read() as session:
        repository = CurveRepository(session, database)
        state = state or read_state(repository, JobRepository(session, now).get(job_id), query.keys)
        job = state.job
        curves = _JobCurves(repository, query, state)
        axis: Axis | None = None
        if query.axis == "tokens":
            points = curves.token_points()
            check_token_axis(job.id, job.spec, reported=bool(points))
            axis = token_axis(points)
        elif query.axis == "time":
            axis = training_seconds(curves.execution_spans())
        names = curves.names()
        shown = names[: query.max_series]
        curves.limit_points(query.max_total // max(1, len(shown)))
        series = [curves.series(name, axis) for name in shown]
    return MetricsResource(job_id=job_id, axis=query.axis, series=series, series_omitted=len(names) - len(shown))


class _JobCurves:
    """The curves of a job, in a session."""

    def __init__(self, repository: CurveRepository, query: CurveQuery, state: CurveState):
        self._repository = repository
        self._job_pk = state.job.pk
        self._query = query
        self._keys, self._resumed, self._cursor, self._pending = state.keys, state.resumed, state.cursor, state.pending

    def names(self) -> Sequence[str]:
        return self._query.select(self._keys)

    def limit_points(self, count: int) -> None:
        """Set the largest number of points per series, if the query allows more."""
        self._query = replace(self._query, max_points=min(self._query.max_points, max(10, count)))

    def execution_spans(self) -> Iterator[ExecutionSpan]:
        """Yield the visible part of each execution, in order, by the points of one metric."""
        keys = self._repository.keys(self._job_pk, (_REFERENCE_METRIC,)) or self._repository.keys(self._job_pk)
        if not keys:
            return
        key_pk = keys[min(keys, key=_order)]
        raw = not self._cursor.raw_deleted
        for execution, first, last in sorted(visible_ranges(self._resumed, 0, MAX_STEP)):
            ends = self._repository.first_and_last(self._job_pk, key_pk, execution, (first, last), raw=raw)
            if ends:
                start, end = (StepTime(*one) for one in ends)
                # `UNKNOWN_STEP` is after every point.
                yield ExecutionSpan(execution, min(self._resumed[execution], start.step), start, end)

    def token_points(self) -> list[tuple[int, float]]:
        """Return the steps and values of the tokens counted so far."""
        key_pk = self._repository.keys(self._job_pk, (TOKENS,)).get(TOKENS)
        rows, _ = ([], False) if key_pk is None else self._rows(key_pk)
        return [(row[0], row[2]) for row in rows if row[2] is not None]

    def series(self, name: str, axis: Axis | None) -> Series:
        key_pk = self._keys.get(name)
        rows, reduced = ([], False) if key_pk is None else self._rows(key_pk)
        steps = [row[0] for row in rows]
        values = [row[2] if row[2] is not None else decode_value(None, row[3]) for row in rows]
        indices, x = _apply_axis(axis, rows, downsample_minmax(steps, values, self._query.max_points))
        return Series(
            key=name,
            steps=[steps[index] for index in indices],
            values=[values[index] for index in indices],
            times=[from_micros(rows[index][4]) for index in indices],
            x=x,
            truncated=reduced or len(indices) < len(rows),
        )

    def _level(self, key_pk: int) -> int:
        query, cursor, job_pk = self._query, self._cursor, self._job_pk
        if not cursor.sequence:
            return NO_LEVEL
        steps, raw = (query.from_step, query.to_step), not cursor.raw_deleted
        if raw and self._repository.has_at_most(job_pk, key_pk, *steps, query.max_points):
            return NO_LEVEL
        count = min(self._repository.step_count(job_pk, key_pk, raw=raw), steps[1] - steps[0] + 1)
        return max(NO_LEVEL if raw else 0, choose_level(count, cursor.spacing_bits, query.max_points))

    def _rows(self, key_pk: int) -> tuple[list[CurveRow], bool]:
        """Return the visible rows of a series ordered by step, and whether they were read from buckets."""
        query, cursor = self._query, self._cursor
        lowest, level = 0 if cursor.raw_deleted else NO_LEVEL, self._level(key_pk)
        ranges = list(visible_ranges(self._resumed, query.from_step, query.to_step))
        reads = [read for each in ranges for read in plan_reads(*each, level, cursor.spacing_bits, lowest=lowest)]
        rows = self._repository.read_ranges(self._job_pk, key_pk, reads)
        pending = self._pending.get(key_pk, ()) if level != NO_LEVEL else ()
        for execution, first, last in ranges if pending else ():
            rows += [row for row in pending if row[1] == execution and first <= row[0] <= last]
        # A pending point may also be in a range that was read from the points themselves. If two visible executions
        # have a point at a step, the later execution's point is shown.
        by_step = {row[0]: row for row in sorted(dict.fromkeys(rows), key=itemgetter(0, 1))}
        return list(by_step.values()), level != NO_LEVEL


def _order(name: str) -> tuple[bool, bool, str]:
    """Return the place of a metric: metrics of the engine first, metrics of the nodes last."""
    return name.startswith(SYSTEM_PREFIXES), not name.startswith(_ENGINE_PREFIXES), name


def _apply_axis(
    axis: Axis | None, rows: Sequence[CurveRow], indices: list[int]
) -> tuple[list[int], list[float] | None]:
    """Return the indices of the rows that have an x-coordinate, and the coordinates; None on the axis of steps."""
    if axis is None:
        return indices, None
    coordinates = [(index, axis(rows[index][0], rows[index][1], rows[index][4])) for index in indices]
    present = [(index, x) for index, x in coordinates if x is not None]
    return [index for index, _ in present], [x for _, x in present]
