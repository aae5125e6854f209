"""Failpoints: named places where a test can end the process. In production the hook does nothing."""

from collections.abc import Callable

Failpoint = Callable[[str], None]
"""Called with the label of each failpoint that the process passes."""


def no_failpoint(label: str) -> None:
    """Continue."""
