"""Tables of data files that users uploaded, and of their uploads in parts."""

from datetime import datetime

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import PublicId


class DataFile(Base):
    """A user's reference to the content of a file, which is stored once for each digest."""

    __tablename__ = "data_files"
    __table_args__ = (Index(None, "created_by", "id"), Index(None, "digest"))

    id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    """Sorts by time of creation."""
    name: Mapped[str] = mapped_column(String(120))
    format: Mapped[str] = mapped_column(String(32))
    size_bytes: Mapped[int]
    examples: Mapped[int]
    digest: Mapped[str] = mapped_column(String(80))
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]


class Upload(Base):
    """An upload in parts. The received bytes are a file, whose size is their number."""

    __tablename__ = "uploads"
    __table_args__ = (Index(None, "created_by"), Index(None, "updated_at"))

    id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    format: Mapped[str | None] = mapped_column(String(32))
    """The requested format; None: the format of the first line."""
    size_bytes: Mapped[int]
    digest: Mapped[str | None] = mapped_column(String(80))
    """The announced digest; None: it is not verified."""
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    """When the last part was received."""
    file_id: Mapped[str | None] = mapped_column(PublicId)
    """The file that it became."""
