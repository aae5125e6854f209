"""Parsing of route parameters."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.dependencies import QueryTimestamp

TIMESTAMPS: TypeAdapter[datetime] = TypeAdapter(QueryTimestamp)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T10:00:00Z", datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("2026-11-22T10:00:00+02:00", datetime(2026, 11, 22, 10, tzinfo=timezone(timedelta(hours=2)))),
        ("2026-11-22T10:00:00 02:00", datetime(2026, 11, 22, 10, tzinfo=timezone(timedelta(hours=2)))),
        ("2026-11-22 10:00:00.250 0000", datetime(2026, 11, 22, 10, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-22T10:00 00:00", datetime(2026, 11, 22, 10, tzinfo=UTC)),
    ],
)
def test_blank_before_the_zone_is_read_as_plus(text: str, expected: datetime) -> None:
    assert TIMESTAMPS.validate_python(text) == expected


@pytest.mark.parametrize("text", ["2026-11-22 10:00", "2026-11-22 10:00:00", "2026-11-22T10:00:00", "0.5"])
def test_timestamp_without_a_zone_is_rejected(text: str) -> None:
    with pytest.raises(ValidationError):
        TIMESTAMPS.validate_python(text)
