"""Tables of metrics: points as reported, and downsampled points."""

from datetime import datetime

from sqlalchemy import ColumnElement, Double, ForeignKey, Index, SmallInteger, String, and_, func
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from trainyard.contract.stored_name import SYSTEM_PREFIXES


class MetricKey(Base):
    """The name of a metric, and the number that stands for it in other tables."""

    __tablename__ = "metric_keys"

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(250), unique=True)

    @classmethod
    def is_of_program(cls) -> ColumnElement[bool]:
        """Return the condition for a metric that no launcher measured. LIKE of SQLite would ignore case."""
        return and_(*(func.substr(cls.name, 1, len(one)) != one for one in SYSTEM_PREFIXES))


class Point(Base):
    """One value of a metric. `special` encodes values that SQLite cannot store: 1 NaN, 2 infinity, 3 minus infinity.

    Without foreign keys, whose checks cost more than the INSERT. Writers lock the job's row, and the deletion of a job
    deletes its points (docs/decisions/0023).
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
    position: Mapped[int | None]
    """Where the point is in its spool, as `service.core.positions`. None: an older worker reported it."""


class CurveRevision(Base):
    """Changes of the stored points of a metric, by execution and spool."""

    __tablename__ = "curve_revisions"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    execution: Mapped[int] = mapped_column(primary_key=True)
    key_pk: Mapped[int] = mapped_column(ForeignKey("metric_keys.pk"), primary_key=True)
    spool: Mapped[int] = mapped_column(primary_key=True)
    repeats: Mapped[int] = mapped_column(default=0)
    """How many values a later value of the same step replaced."""
    restart: Mapped[int | None]
    """The first position that is not void, if the curve was begun again."""
    sequence: Mapped[int]
    """The number in the job's sequence of the last change."""


class JobKey(Base):
    """A metric of a job. Without this table, listing a job's metrics would read all its points."""

    __tablename__ = "job_keys"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    key_pk: Mapped[int] = mapped_column(ForeignKey("metric_keys.pk"), primary_key=True)


class DownsampledPoint(Base):
    """A sample of a bucket of steps, at a level of bucket widths; see service/metrics/downsampling.

    Without foreign keys, like `points`; writers lock the job's row of `downsample_states`.
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
    """The position of downsampling in a job's sequence."""

    __tablename__ = "downsample_states"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]
    """Points up to this number of the job's sequence are in the buckets."""
    spacing_bits: Mapped[int] = mapped_column(SmallInteger)
    """Distance between the job's points as a power of two of steps, estimated from the first points."""
    raw_deleted: Mapped[bool] = mapped_column(default=False)
    """Whether retention has deleted the points; the samples remain."""
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often points were deleted. Samples that were computed from points before that are not stored."""
