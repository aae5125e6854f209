"""Numbers in words, said alike on the server and in the browser."""

import math
from datetime import UTC, datetime

import pytest

from service.web import wording


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, wording.NOTHING),
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
def test_number(value: float | str | None, words: str) -> None:
    assert wording.number(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "12 ms"),
        (2.345, "2.3 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (12000, "3 h 20 min"),
        (90000, "1 d 1 h"),
        (math.nan, wording.NOTHING),
        (None, wording.NOTHING),
    ],
)
def test_duration(seconds: float | None, words: str) -> None:
    assert wording.duration(seconds) == words


def test_size_and_count() -> None:
    assert [wording.size(value) for value in (None, 12, 1500, 2_340_000, 7e12)] == [
        wording.NOTHING, "12 B", "1.5 kB", "2.34 MB", "7 TB",
    ]  # fmt: skip
    assert wording.count(1234567) == "1\u202f234\u202f567"


def test_times() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert (wording.moment(at), wording.exact(at)) == ("2026-01-02 03:04 UTC", "2026-01-02T03:04:05.678Z")
