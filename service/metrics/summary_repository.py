"""All SQL that summarizes the points of a job's metrics."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session, load_only

from service.db.models import (
    CurveRevision,
    DownsampledPoint,
    DownsampleState,
    Execution,
    Job,
    JobValue,
    MetricKey,
    Point,
    ValueState,
)
from service.jobs.table.value_repository import ValueRepository

Extreme = tuple[str, int, float | None, int]
"""Metric, step, value and special of a point: the last, smallest or largest of the points read, or not finite."""


class SummaryRepository:
    """Summaries within a session."""

    def __init__(self, session: Session):
        self._session = session
        self.values = ValueRepository(session)

    def job(self, job_pk: int) -> Job | None:
        """Return the job with its sequence and first execution alone."""
        query = sa.select(Job).where(Job.pk == job_pk).options(load_only(Job.sequence, Job.first_execution))
        return self._session.scalar(query)

    def state(self, job_pk: int) -> ValueState | None:
        return self._session.get(ValueState, job_pk)

    def executions(self, job_pk: int, first: int) -> dict[int, int]:
        """Return the step that each execution resumed from, of those since the last retry from scratch."""
        query = sa.select(Execution.number, Execution.resumed_from_step)
        rows = self._session.execute(query.where(Execution.job_pk == job_pk, Execution.number >= first))
        return {number: step for number, step in rows}

    def has_other_points(self, job_pk: int, after: int, execution: int) -> bool:
        """Whether points of another execution arrived since this number of the job's sequence."""
        query = sa.select(sa.literal(1)).where(
            Point.job_pk == job_pk, Point.sequence > after, Point.execution != execution
        )
        return self._session.scalar(query.limit(1)) is not None

    def revised_metrics(self, job_pk: int, after: int) -> set[str]:
        """Return the metrics of which points were replaced or deleted since this number of the job's sequence."""
        query = sa.select(MetricKey.name).join(CurveRevision, CurveRevision.key_pk == MetricKey.pk)
        return set(self._session.scalars(query.where(CurveRevision.job_pk == job_pk, CurveRevision.sequence > after)))

    def last_steps(self, job_pk: int, names: Collection[str], steps: tuple[int, int, int]) -> dict[str, int]:
        """Return the last step of each of these metrics that has points within an execution's range of steps."""
        execution, first, last = steps
        of_key = (Point.job_pk == job_pk, Point.key_pk == MetricKey.pk, Point.execution == execution)
        query = sa.select(Point.step).where(*of_key, Point.step.between(first, last)).order_by(Point.step.desc())
        highest = query.limit(1).correlate(MetricKey).scalar_subquery()
        rows = self._session.execute(sa.select(MetricKey.name, highest).where(MetricKey.name.in_(names)))
        return {name: step for name, step in rows if step is not None}

    def new_extremes(self, job_pk: int, after: int, up_to: int) -> list[Extreme]:
        """Return the extremes of the points with these numbers of the job's sequence."""
        return self._extremes(Point, (Point.job_pk == job_pk, Point.sequence > after, Point.sequence <= up_to))

    def all_extremes(
        self, job_pk: int, ranges: Sequence[tuple[int, int, int]], *, names: Collection[str] | None = None
    ) -> list[Extreme]:
        """Return the extremes of the visible points: the points of each execution within its range of steps.

        If two visible executions have a point at a step, the later execution's point is shown, and is the later point
        here. Points that arrive after the deletion of a job's points are beside its samples.

        Args:
            names: Some metrics; None: all.
        """
        deleted = self._session.scalar(sa.select(DownsampleState.raw_deleted).where(DownsampleState.job_pk == job_pk))
        tables: tuple[Any, ...] = (DownsampledPoint, Point) if deleted else (Point,)
        extremes: list[Extreme] = []
        for (execution, first, last), table in product(ranges, tables):
            conditions = [table.job_pk == job_pk, table.execution == execution, table.step.between(first, last)]
            if table is DownsampledPoint:
                conditions.append(table.level == 0)
            if names is not None:
                conditions.append(table.key_pk.in_(sa.select(MetricKey.pk).where(MetricKey.name.in_(names))))
            extremes += self._extremes(table, conditions)
        return extremes

    def _extremes(self, table: Any, conditions: Sequence[Any]) -> list[Extreme]:
        chosen = sa.select(table.key_pk, table.step, table.value, table.special).where(*conditions).cte("chosen")
        ends = (
            sa.select(
                chosen.c.key_pk,
                sa.func.min(chosen.c.value).label("low"),
                sa.func.max(chosen.c.value).label("high"),
                sa.func.max(chosen.c.step).label("last"),
            )
            .group_by(chosen.c.key_pk)
            .cte("ends")
        )
        is_end = sa.or_(
            chosen.c.value == ends.c.low,
            chosen.c.value == ends.c.high,
            chosen.c.step == ends.c.last,
            chosen.c.special > 0,
        )
        # A row for each value, not for each point: in a constant series, a million points may be the smallest.
        query = (
            sa.select(
                MetricKey.name, sa.func.min(chosen.c.step), sa.func.max(chosen.c.step), chosen.c.value, chosen.c.special
            )
            .join(ends, ends.c.key_pk == chosen.c.key_pk)
            .join(MetricKey, MetricKey.pk == chosen.c.key_pk)
            # The resources that a node uses are no result of the job, by which anyone would compare jobs.
            .where(is_end, MetricKey.is_of_program())
            .group_by(MetricKey.name, chosen.c.value, chosen.c.special)
        )
        rows = self._session.execute(query)
        return [(name, step, *rest) for name, first, last, *rest in rows for step in sorted({first, last})]

    def advance(self, job_pk: int, old: int | None, new: int, executions: Mapping[int, int]) -> bool:
        """Compare and set; return False if another process was faster, or the job is gone."""
        job = self._session.scalar(sa.select(Job.pk).where(Job.pk == job_pk).with_for_update())
        if job is None:
            return False
        pairs = [list(pair) for pair in sorted(executions.items())]
        if old is None:
            if self.state(job_pk) is not None:
                return False
            self._session.add(ValueState(job_pk=job_pk, sequence=new, executions=pairs))
            return True
        update = sa.update(ValueState).where(ValueState.job_pk == job_pk, ValueState.sequence == old)
        result = self._session.execute(update.values(sequence=new, executions=pairs))
        return cast(sa.CursorResult[Any], result).rowcount == 1

    def add_values(self, job_pk: int) -> None:
        """Add the values of the spec and the parameters of a job that has none, as jobs of former releases."""
        has_values = sa.select(JobValue.key_pk).where(JobValue.job_pk == job_pk).limit(1)
        if self._session.scalar(has_values) is None:
            self.values.add_jobs([self._session.get_one(Job, job_pk)])

    def next_jobs(self, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return the next jobs by key, and whether the values of each are behind."""
        behind = sa.or_(ValueState.sequence.is_(None), ValueState.sequence < Job.sequence)
        query = sa.select(Job.pk, behind).outerjoin(ValueState, ValueState.job_pk == Job.pk)
        query = query.where(Job.pk > after).order_by(Job.pk).limit(limit)
        return [(pk, bool(is_behind)) for pk, is_behind in self._session.execute(query)]
