"""Logs rows that are left out because they cannot be read or shown: a bad row must not fail the answer about the
others."""

from collections.abc import Hashable

import structlog

_MAX_LOGGED = 1000
_logged: set[Hashable] = set()


def log_skipped_row(row: Hashable, error: Exception) -> None:
    """Log a skipped row, once: it is read many times.

    Args:
        row: Identifies the row.
    """
    if row not in _logged and len(_logged) < _MAX_LOGGED:
        _logged.add(row)
        structlog.get_logger("skipped-rows").error("a row cannot be shown", row=row, exc_info=error)
