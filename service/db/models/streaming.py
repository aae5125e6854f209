"""Tables of the global feed and of rank logs."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class FeedEntry(Base):
    """An entry of the global feed: the numbers `first` to `last` of a job's sequence."""

    __tablename__ = "feed"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    first: Mapped[int]
    last: Mapped[int]


class FeedSequence(Base):
    """The newest position of the feed. Writers lock its row, so that positions are committed in order."""

    __tablename__ = "feed_sequences"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]


class FeedCursor(Base):
    """The last number of a job's sequence that is in the feed."""

    __tablename__ = "feed_cursors"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]


class LogStream(Base):
    """The number of bytes of a rank's log that were received."""

    __tablename__ = "log_streams"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[str] = mapped_column(String(16), primary_key=True)
    size: Mapped[int] = mapped_column(default=0)


class LogChunk(Base):
    """Consecutive bytes of a log."""

    __tablename__ = "log_chunks"
    __table_args__ = (
        UniqueConstraint("attempt_id", "rank", "offset"),
        Index(None, "job_pk", "sequence"),
        Index(None, "attempt_id", "rank", "received_at", "offset"),
    )

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    rank: Mapped[str] = mapped_column(String(16))
    offset: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    sequence: Mapped[int]
    received_at: Mapped[datetime | None]
    """When the service received it; none if an older release did."""
