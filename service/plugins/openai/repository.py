"""All SQL of OpenAI's API: its jobs, their models, and their events in pages."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from service.core.errors import NotFoundError
from service.db.models import Checkpoint, Event, FineTune, Job, JobLabel, MetricKey, Point
from service.db.repository import Repository
from service.metrics.values import decode_value
from service.plugins.openai.errors import invalid_after

TRAIN_LOSS, EVAL_LOSS = "train/loss", "eval/loss"
ACCURACIES = {TRAIN_LOSS: "train/mean_token_accuracy", EVAL_LOSS: "eval/mean_token_accuracy"}
"""The accuracy of tokens that is reported together with each loss."""

FineTunedJob = tuple[FineTune, Job]


class LossPoint(NamedTuple):
    """A loss as it was first reported for a step."""

    sequence: int
    step: int
    key: str
    value: float
    time: datetime
    accuracy: float | None = None
    """Accuracy of tokens; None if it was not measured, as for preferences."""


class FineTuneRepository(Repository):
    """Fine-tuning jobs within a session, among the jobs that the caller can see."""

    def get(self, job_id: str) -> FineTunedJob:
        """Return a job. Raises NotFoundError: it does not exist, or was not created through this API."""
        row = self._session.execute(_ALL.where(FineTune.job_id == job_id)).first()
        if row is None:
            message = f"there is no fine-tuning job {job_id[:80]!r}"
            raise NotFoundError(message, code="fine_tune_not_found", param="fine_tuning_job_id")
        return row[0], row[1]

    def list_page(self, after: str | None, limit: int, metadata: Mapping[str, str]) -> tuple[list[FineTunedJob], bool]:
        """Return the jobs after a given job, newest first, and whether more follow."""
        query = _ALL if after is None else _ALL.where(FineTune.job_id < after)
        for key, value in metadata.items():
            label = aliased(JobLabel)
            query = query.join(label, sa.and_(label.job_id == FineTune.job_id, label.key == key, label.value == value))
        rows = self._session.execute(query.order_by(FineTune.job_id.desc()).limit(limit + 1)).all()
        return [(row[0], row[1]) for row in rows[:limit]], len(rows) > limit

    def models(self) -> list[FineTunedJob]:
        """Return the jobs whose models can be used, newest first."""
        query = _ALL.where(Job.status == "succeeded", FineTune.model_deleted_at.is_(None))
        return [(row[0], row[1]) for row in self._session.execute(query.order_by(FineTune.job_id.desc()))]

    def by_model(self, name: str) -> FineTunedJob | None:
        """Return the job that made the model with this name, if it can be used."""
        query = _ALL.where(FineTune.result == name, Job.status == "succeeded", FineTune.model_deleted_at.is_(None))
        row = self._session.execute(query).first()
        return None if row is None else (row[0], row[1])

    def events(self, job: Job, before: int | None, limit: int) -> Sequence[Event]:
        """Return the job's events before a number of its sequence, newest first."""
        query = sa.select(Event).where(Event.job_pk == job.pk)
        if before is not None:
            query = query.where(Event.sequence < before)
        return self._session.scalars(query.order_by(Event.sequence.desc()).limit(limit)).all()

    def losses(self, job: Job, before: tuple[int, int, int] | None, limit: int) -> list[tuple[int, LossPoint]]:
        """Return the first report of each step's losses before a position, newest first, with the metric's key.

        A step that runs again after a kill has been reported, so that its later reports are left out.

        Args:
            before: Number in the sequence, step, and the key of the metric; None: the end.
        """
        earlier = aliased(Point)
        repeats = sa.exists().where(
            earlier.job_pk == Point.job_pk,
            earlier.key_pk == Point.key_pk,
            earlier.step == Point.step,
            earlier.sequence < Point.sequence,
            earlier.execution >= job.first_execution,
        )
        position = sa.tuple_(Point.sequence, Point.step, Point.key_pk)
        query = (
            sa.select(Point.key_pk, Point.sequence, Point.step, MetricKey.name, Point.value, Point.special, Point.time)
            .join(MetricKey, MetricKey.pk == Point.key_pk)
            .where(Point.job_pk == job.pk, MetricKey.name.in_((TRAIN_LOSS, EVAL_LOSS)))
            .where(Point.execution >= job.first_execution, ~repeats)
        )
        if before is not None:
            # The first condition has an index.
            query = query.where(Point.sequence <= before[0], position < sa.tuple_(*before))
        order = (Point.sequence.desc(), Point.step.desc(), Point.key_pk.desc())
        rows: Any = self._session.execute(query.order_by(*order).limit(limit))
        points = [
            (key, LossPoint(sequence, step, name, decode_value(value, special), time))
            for key, sequence, step, name, value, special, time in rows
        ]
        accuracies = self._accuracies(job, [point.sequence for _, point in points])
        return [
            (key, point._replace(accuracy=accuracies.get((point.sequence, point.step, ACCURACIES[point.key]))))
            for key, point in points
        ]

    def _accuracies(self, job: Job, sequences: Sequence[int]) -> dict[tuple[int, int, str], float]:
        """Return the accuracies of these numbers of the job's sequence, by number, step and name. A loss and its
        accuracy are in the same report, so that they are stored with the same number at once."""
        if not sequences:
            return {}
        query = (
            sa.select(Point.sequence, Point.step, MetricKey.name, Point.value, Point.special)
            .join(MetricKey, MetricKey.pk == Point.key_pk)
            .where(Point.job_pk == job.pk, MetricKey.name.in_(ACCURACIES.values()))
            .where(Point.sequence.between(min(sequences), max(sequences)), Point.sequence.in_(set(sequences)))
        )
        rows: Any = self._session.execute(query)
        return {(number, step, name): decode_value(value, special) for number, step, name, value, special in rows}

    def checkpoints(self, job: Job, after: str | None, limit: int) -> tuple[list[Checkpoint], bool]:
        """Return the checkpoints before a given checkpoint, newest first, and whether more follow.

        Raises:
            InvalidRequestError: The job has had no checkpoint with the id `after`.
        """
        query = sa.select(Checkpoint).where(Checkpoint.job_pk == job.pk, Checkpoint.deleted_at.is_(None))
        if after is not None:
            of_job = sa.select(Checkpoint.step).where(Checkpoint.job_pk == job.pk)
            step = self._session.scalar(of_job.where(Checkpoint.id == after))
            if step is None:
                raise invalid_after(after, "checkpoint")
            query = query.where(Checkpoint.step < step)
        rows = list(self._session.scalars(query.order_by(Checkpoint.step.desc()).limit(limit + 1)))
        return rows[:limit], len(rows) > limit


_ALL = sa.select(FineTune, Job).join(Job, Job.id == FineTune.job_id).where(Job.deletion_requested_at.is_(None))
