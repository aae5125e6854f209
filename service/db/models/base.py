"""The declarative base of all tables."""

from datetime import datetime
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

from service.db.types import BigInt, Json, UtcTime


class Base(DeclarativeBase):
    """Every constraint has a name, so that migrations can change it on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcTime, dict[str, Any]: Json, list[Any]: Json, int: BigInt}  # noqa: RUF012
