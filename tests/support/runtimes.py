"""Runtimes of jobs, which the service, the command line and the pages must agree on."""

from datetime import UTC, datetime

NOW = datetime(2026, 1, 1, 12, 10, tzinfo=UTC)

RUNTIMES = [
    (None, None, None),
    (None, "2026-01-01T12:00:00.000Z", None),
    ("2026-01-01T12:00:00.000Z", None, 600.0),
    ("2026-01-01T12:00:00.000Z", "2026-01-01T12:00:01.500Z", 1.5),
    ("2026-01-01T12:00:00.000Z", "2026-01-03T12:00:00.000Z", 172_800.0),
    ("2026-01-01T12:20:00.000Z", None, 0.0),
]
"""Start, end, and seconds at `NOW`; in the last case, the clock of the reader is behind."""
