"""When points are old."""

from datetime import UTC, datetime, timedelta

from service.metrics.retention import cutoff

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_without_the_setting_nothing_is_old() -> None:
    assert cutoff(NOW, None) is None


def test_the_days_are_counted_from_now() -> None:
    assert cutoff(NOW, 30) == NOW - timedelta(days=30)
