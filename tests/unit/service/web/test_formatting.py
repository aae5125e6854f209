"""Numbers in words, said alike on the server and in the browser."""

import math
from datetime import UTC, datetime

import pytest

from service.web import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formatting.NOTHING),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (12.0, "12"),
        (100, "100"),
        (123456.0, "123456"),
        (2.5e-5, "2.5e-5"),
        (3e9, "3e9"),
        (math.nan, "NaN"),
        (-math.inf, "-∞"),
        ("NaN", "NaN"),
    ],
)
def test_number(value: float | str | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (2.345, "2.3 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (12000, "3 h 20 min"),
        (90000, "1 d 1 h"),
        (math.nan, formatting.NOTHING),
        (None, formatting.NOTHING),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_size_and_count() -> None:
    assert [formatting.size(value) for value in (None, 12, 1500, 2_340_000, 7e12)] == [
        formatting.NOTHING, "12 B", "1.5 kB", "2.34 MB", "7 TB",
    ]  # fmt: skip
    assert formatting.count(1234567) == "1\u202f234\u202f567"


def test_times() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert (formatting.timestamp(at), formatting.iso_timestamp(at)) == (
        "2026-01-02 03:04 UTC",
        "2026-01-02T03:04:05.678Z",
    )
