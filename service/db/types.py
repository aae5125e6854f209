"""Column types that behave alike on SQLite and Postgres."""

from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, Dialect, Integer, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from trainyard.contract.base import MAX_TIME, MIN_TIME

Json = JSON().with_variant(JSONB(), "postgresql")
OptionalJson = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""JSON whose None is NULL, so that a partial index can leave it out."""
BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite's INTEGER is 64 bits wide and, unlike BIGINT there, can be an autoincrementing key."""

PublicId = String(40).with_variant(String(40, collation="C"), "postgresql")
"""An id, compared bytewise as in SQLite; the collation of a language takes Postgres twice as long."""

ValueText = String(200).with_variant(String(200, collation="C"), "postgresql")
"""A text by which jobs are sorted, compared as `PublicId`."""

ModelName = String(100).with_variant(String(100, collation="C"), "postgresql")
"""The name of a registered model, compared as `PublicId`."""

_clamped_logged = False


def to_micros(value: datetime) -> int:
    """Return an aware time as whole microseconds since 1970.

    Raises:
        ValueError: The time is not between 1970 and 2200, so that readers could not represent it.
    """
    if not MIN_TIME <= value <= MAX_TIME:
        raise ValueError(f"a time outside of {MIN_TIME.year} to {MAX_TIME.year}")
    delta = value - MIN_TIME
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


_MAX_MICROS = to_micros(MAX_TIME)


def from_micros(value: int) -> datetime:
    """Return the UTC time of whole microseconds since 1970; values outside of 1970 to 2200 are clamped and logged."""
    if not 0 <= value <= _MAX_MICROS:
        _log_clamped(value)
        value = min(max(value, 0), _MAX_MICROS)
    return MIN_TIME + timedelta(microseconds=value)


def _log_clamped(value: int) -> None:
    """Log the first value only: a stored value is read many times."""
    global _clamped_logged
    if not _clamped_logged:
        _clamped_logged = True
        structlog.get_logger("database").warning("a stored time is out of range and is clamped", micros=value)


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
