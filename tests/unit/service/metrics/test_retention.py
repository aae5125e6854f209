"""The cutoff of retention."""

from datetime import UTC, datetime, timedelta

from service.metrics.retention import cutoff

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_without_the_setting_there_is_no_cutoff() -> None:
    assert cutoff(NOW, None) is None


def test_cutoff_is_the_given_days_before_now() -> None:
    assert cutoff(NOW, 30) == NOW - timedelta(days=30)
