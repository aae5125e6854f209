"""Tables of metrics: points as reported, and downsampled points."""

from datetime import datetime

from sqlalchemy import Double, ForeignKey, Index, SmallInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class MetricKey(Base):
    """A metric's name, once."""

    __tablename__ = "metric_keys"

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(250), unique=True)


class Point(Base):
    """One value. `special` is set where SQLite has no number for it: 1 NaN, 2 infinity, 3 minus infinity.

    The job and the metric are in no foreign key: to look both up costs more than to store the point. Whoever writes
    holds the job's row, and the job is deleted with its points (see docs/decisions/0043).
    """

    __tablename__ = "points"
    __table_args__ = (Index(None, "job_pk", "sequence"), {"sqlite_with_rowid": False})

    job_pk: Mapped[int] = mapped_column(primary_key=True)
    key_pk: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    execution: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None] = mapped_column(Double)
    special: Mapped[int] = mapped_column(SmallInteger, default=0)
    time: Mapped[datetime]
    sequence: Mapped[int]


class JobKey(Base):
    """A metric that a job has. Without it, listing a job's metrics would read every point."""

    __tablename__ = "job_keys"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    key_pk: Mapped[int] = mapped_column(ForeignKey("metric_keys.pk"), primary_key=True)


class DownsampledPoint(Base):
    """A point that stands out in its bucket of steps, at one of several widths: see service/metrics/downsampling.

    Without foreign keys, as the points themselves; whoever writes holds the job's row of `downsample_states`.
    """

    __tablename__ = "downsampled_points"
    __table_args__ = ({"sqlite_with_rowid": False},)

    job_pk: Mapped[int] = mapped_column(primary_key=True)
    key_pk: Mapped[int] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    execution: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None] = mapped_column(Double)
    special: Mapped[int] = mapped_column(SmallInteger, default=0)
    time: Mapped[datetime]


class DownsampleState(Base):
    """How far a job's points have been thinned."""

    __tablename__ = "downsample_states"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]
    """Everything up to this place of the job's sequence is in the buckets."""
    shift: Mapped[int] = mapped_column(SmallInteger)
    """The job's points are about two to the power of this many steps apart."""
    raw_deleted: Mapped[bool] = mapped_column(default=False)
    """Retention has taken the points themselves."""
