"""Column types that behave alike on SQLite and Postgres."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Integer, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

Json = JSON().with_variant(JSONB(), "postgresql")
BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite's INTEGER is 64 bits wide and, unlike BIGINT there, can be an autoincrementing key."""

PublicId = String(40).with_variant(String(40, collation="C"), "postgresql")
"""An id, compared bytewise as in SQLite; the collation of a language takes Postgres twice as long."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(value: datetime) -> int:
    """Return an aware time as whole microseconds since 1970."""
    delta = value - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_micros(value: int) -> datetime:
    """Return the UTC time of whole microseconds since 1970."""
    seconds, micros = divmod(value, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC time, stored as whole microseconds since 1970: sorts, compares and indexes alike everywhere."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        return to_micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return None if value is None else from_micros(int(value))
