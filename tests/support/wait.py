"""Wait for a condition with a timeout, instead of sleeping for a fixed time."""

import os
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
NO_TLS = False
"""The value of httpx's `verify` for requests without TLS: reading the authorities takes longer than the request."""
PATIENCE = 4.0 if os.environ.get("CI") else 1.0
"""Multiplies each timeout. A timeout ends a test that hangs, and CI may run on a busy machine."""


def wait_until(
    condition: Callable[[], T | Literal[False] | None], timeout: float = 10.0, what: str = "the condition"
) -> T:
    """Call `condition` until its value is true, and return that value.

    Raises:
        AssertionError: the value was false for `timeout` x `PATIENCE` seconds; the message names `what`.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"timeout of {timeout:g} s while waiting for {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
