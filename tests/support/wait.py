"""Waiting for a state, with a limit: tests never sleep for one."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, what: str = "the condition") -> T:
    """Ask until the answer is true, and return it.

    Raises:
        AssertionError: it never was; names what was waited for.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
