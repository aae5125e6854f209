"""Keeps the last, smallest and largest value of each metric of a job, by which the runs table filters and sorts."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import structlog

from service.core.errors import UnavailableError
from service.db.engine import Database
from service.jobs.table.values import Kind, StoredValue, Values, stored_value
from service.metrics.downsampling.levels import MAX_STEP, visible_ranges
from service.metrics.summary_repository import Extreme, SummaryRepository
from service.metrics.values import decode_value

METRIC_KINDS: tuple[Kind, ...] = ("metric", "min", "max", "min_step", "max_step", "non_finite")
SECONDS = 2.0
"""Pause between two rounds over the jobs with new points."""
_IDLE_SECONDS = 5.0
_JOBS_PER_STEP = 50
"""Maximum number of jobs per step of the back-fill."""


class Summary(NamedTuple):
    """The last, smallest and largest value of a metric, each with its step."""

    last: float
    last_step: int
    low: float | None = None
    low_step: int = 0
    high: float | None = None
    high_step: int = 0
    was_non_finite: bool = False
    """Whether any value was NaN or infinite."""


def summarize(points: Iterable[Extreme], before: Mapping[str, Summary]) -> dict[str, Summary]:
    """Return the summaries with more points of their metrics. The first step of equal values counts; NaN is skipped."""
    summaries = dict(before)
    for name, step, number, special in points:
        value = decode_value(number, special)
        known = summaries.get(name) or Summary(value, step)
        if step >= known.last_step:
            known = known._replace(last=value, last_step=step)
        if not isfinite(value):
            known = known._replace(was_non_finite=True)
        if value == value:
            if known.low is None or (value, step) < (known.low, known.low_step):
                known = known._replace(low=value, low_step=step)
            if known.high is None or (-value, step) < (-known.high, known.high_step):
                known = known._replace(high=value, high_step=step)
        summaries[name] = known
    return summaries


def summary_values(summaries: Mapping[str, Summary]) -> Values:
    """Return summaries as values of a job."""
    values: Values = {}
    for name, one in summaries.items():
        fields: tuple[tuple[Kind, float | None], ...] = (
            ("metric", one.last),
            ("min", one.low),
            ("max", one.high),
            ("min_step", None if one.low is None else one.low_step),
            ("max_step", None if one.high is None else one.high_step),
        )
        for kind, value in fields:
            stored = stored_value(value)
            if stored is not None:
                values[kind, name] = stored
        if one.was_non_finite:
            values["non_finite", name] = StoredValue(None, "true")
    return values


def summaries_of(values: Values) -> dict[str, Summary]:
    """Return the stored summaries. The step of the last value is not stored: new points follow it, or all are read."""
    names = {name for kind, name in values if kind == "metric"}
    return {name: _summary(values, name) for name in names}


def _summary(values: Values, name: str) -> Summary:
    def number(kind: Kind) -> float | None:
        stored = values.get((kind, name))
        return None if stored is None else _number(stored)

    last = number("metric")
    return Summary(
        float("nan") if last is None else last,
        0,
        number("min"),
        int(number("min_step") or 0),
        number("max"),
        int(number("max_step") or 0),
        ("non_finite", name) in values,
    )


def _number(value: StoredValue) -> float:
    return float(value.text or "nan") if value.number is None else value.number


def refresh_job(database: Database, job_pk: int) -> bool:
    """Bring the values of a job's metrics up to date. Return whether there was anything to do.

    New points of the newest execution change the stored values. A metric is read again after points of it were replaced
    or deleted, or arrived after a point of a higher step. Everything is read again after a resume, which hides points,
    and after points of an earlier execution arrived late.
    """
    with database.read() as session:
        points = SummaryRepository(session)
        job = points.job(job_pk)
        if job is None:
            return False
        state = points.state(job_pk)
        if state is not None and state.sequence >= job.sequence:
            return False
        executions = points.executions(job_pk, job.first_execution)
        stored = points.values.values_of(job_pk, METRIC_KINDS)
        newest = max(executions, default=0)
        same = state is not None and state.executions == [list(pair) for pair in sorted(executions.items())]
        ranges = sorted(visible_ranges(executions, 0, MAX_STEP))
        if state is not None and same and not points.has_other_points(job_pk, state.sequence, newest):
            fresh = points.new_extremes(job_pk, state.sequence, job.sequence)
            again = points.revised_metrics(job_pk, state.sequence) | _late(points, job_pk, fresh, ranges)
            fresh = [extreme for extreme in fresh if extreme[0] not in again]
            if again:
                fresh += points.all_extremes(job_pk, ranges, names=again)
            known = summaries_of(stored).items()
            summaries = summarize(fresh, {name: one for name, one in known if name not in again})
        else:
            summaries = summarize(points.all_extremes(job_pk, ranges), {})
    with database.write() as session:
        points = SummaryRepository(session)
        if points.advance(job_pk, None if state is None else state.sequence, job.sequence, executions):
            if state is None:
                points.add_values(job_pk)
            points.values.replace(job_pk, stored, summary_values(summaries))
    return True


def _late(
    points: SummaryRepository, job_pk: int, fresh: Sequence[Extreme], ranges: Sequence[tuple[int, int, int]]
) -> set[str]:
    """Return the metrics whose last new point is before another visible point, so that it is not their last value."""
    reached: dict[str, int] = {}
    for name, step, *_ in fresh:
        reached[name] = max(step, reached.get(name, 0))
    lowest = min(reached.values(), default=MAX_STEP)
    late: set[str] = set()
    for execution, first, last in ranges:
        if last > lowest:
            steps = points.last_steps(job_pk, reached, (execution, first, last))
            late |= {name for name, step in steps.items() if step > reached[name]}
    return late


def back_fill(database: Database, after: int) -> int | None:
    """Refresh the jobs with the next keys whose values are behind; return the last key, or None behind the last job.

    They are behind after a service was killed, after a restored backup, and before the first start of this release.
    """
    with database.read() as session:
        jobs = SummaryRepository(session).next_jobs(after, _JOBS_PER_STEP)
    for job_pk, is_behind in jobs:
        if is_behind:
            refresh_job(database, job_pk)
    return jobs[-1][0] if jobs else None


class Summarizer:
    """Refreshes the jobs that this process changed. Its thread ends when idle."""

    def __init__(self, database: Database, *, seconds: float = SECONDS):
        self._database = database
        self._seconds = seconds
        self._due: set[int] = set()
        self._changed = threading.Condition()
        self._running = False

    def on_commit(self, job_pks: set[int]) -> None:
        """Remember jobs whose sequence was raised; must return at once."""
        with self._changed:
            self._due |= job_pks
            if self._due and not self._running:
                self._running = True
                threading.Thread(target=self._run, name="summarizer", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while due := self._next_jobs():
            started = time.monotonic()
            for job_pk in due:
                self._refresh(job_pk)
            # With many jobs a round takes long; half of the time is left to others.
            with self._changed:
                self._changed.wait_for(lambda: False, max(self._seconds, time.monotonic() - started))

    def _next_jobs(self) -> Sequence[int]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._due, _IDLE_SECONDS):
                self._running = False
                return ()
            due, self._due = sorted(self._due), set()
            return due

    def _refresh(self, job_pk: int) -> None:
        try:
            refresh_job(self._database, job_pk)
        except UnavailableError:
            with self._changed:
                self._due.add(job_pk)
        except Exception as error:
            structlog.get_logger("summaries").error("values of metrics are behind", job_pk=job_pk, exc_info=error)


class BackFill:
    """Walks over all jobs, some in each step, and then again after a long pause."""

    def __init__(self, database: Database, clock: Callable[[], float], *, pause_seconds: float = 3600.0):
        self._database = database
        self._clock = clock
        self._pause = pause_seconds
        self._after: int | None = 0
        self._resume_at = 0.0

    def run_once(self) -> bool:
        """Do a step; return whether there is more to do at once."""
        if self._after is None:
            if self._clock() < self._resume_at:
                return False
            self._after = 0
        self._after = back_fill(self._database, self._after)
        if self._after is None:
            self._resume_at = self._clock() + self._pause
        return self._after is not None
