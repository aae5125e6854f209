"""The limit on the processor time of a test, so that the whole run stays short.

It counts the processor time of the test process and of the child processes that the test has waited for, which depends
little on what else the machine does. Where it takes more because others share the core or the processor is slow, fixed
work takes more too; it is measured after a test that seems to exceed its limit, and the limit rises by the same factor.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

MAX_SECONDS = 2.0
UNLIMITED = {"heavy", "slow", "slurm", "compose", "gpu"}
"""Markers of tests without a limit."""
FIXED_WORK_SECONDS = 0.07
"""Processor time of `fixed_work` on a machine for which `MAX_SECONDS` holds."""


def used_seconds() -> float:
    """Return the processor time of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def fixed_work() -> None:
    """Take a fixed amount of processor time."""
    for _ in range(5):
        json.loads(json.dumps({str(number): [number, str(number)] for number in range(20_000)}))


def slowdown() -> float:
    """Return how much slower this machine is now than one for which the limits hold, at least 1.

    Where others use the cores, measurements in a row differ by a factor of two. The slowest of five counts.
    """
    return max(1.0, *(processor_time(fixed_work) / FIXED_WORK_SECONDS for _ in range(5)))


def processor_time(work: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds, in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def limit_of(item: pytest.Item) -> float:
    """Return the limit of a test in seconds."""
    if not UNLIMITED.isdisjoint(mark.name for mark in item.iter_markers()):
        return math.inf
    marker = item.get_closest_marker("cpu_seconds")
    return float(marker.args[0]) if marker else MAX_SECONDS


def excess(seconds: float, limit: float, slower: Callable[[], float] = slowdown) -> str | None:
    """Return how a test has exceeded its limit, or None."""
    if seconds <= limit or seconds <= (limit := limit * slower()):
        return None
    return (
        f"the test used {seconds:.1f} s of processor time; its limit is {limit:.1f} s on this machine now. "
        "Make it cheaper, mark it `heavy`, or state a limit of its own with `cpu_seconds`"
    )


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block uses more processor time of this process; a slow machine has more, as for whole tests."""
    started = time.process_time()
    yield
    used = time.process_time() - started
    assert used <= seconds or used <= seconds * slowdown(), (
        f"{used:.1f} s of processor time, where {seconds:g} s are enough"
    )
