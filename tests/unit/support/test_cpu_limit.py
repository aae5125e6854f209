"""A test fails if it uses more processor time than its limit, on a slow machine as on a fast one."""

import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cpu_limit import MAX_SECONDS, UNLIMITED, excess, fixed_work, limit_of, processor_time, used_seconds


def limit(*marks: pytest.MarkDecorator) -> float:
    """Return the limit of a test with these markers."""
    by_name = {mark.name: mark for mark in marks}
    item: Any = SimpleNamespace(iter_markers=by_name.values, get_closest_marker=by_name.get)
    return limit_of(item)


def test_markers_change_the_limit() -> None:
    assert limit() == limit(pytest.mark.web) == MAX_SECONDS
    assert limit(pytest.mark.cpu_seconds(5)) == 5
    assert {limit(getattr(pytest.mark, name)) for name in UNLIMITED} == {math.inf}


def test_message_has_both_times() -> None:
    assert excess(1.9, 2, slower=lambda: 1.0) is None
    message = excess(2.1, 2, slower=lambda: 1.0)
    assert message is not None
    assert message.startswith("the test used 2.1 s of processor time; its limit is 2.0 s")


def test_slow_machine_has_a_larger_limit() -> None:
    assert excess(3.9, 2, slower=lambda: 2.0) is None
    assert "its limit is 4.0 s" in str(excess(4.1, 2, slower=lambda: 2.0))


def test_work_of_this_process_and_of_its_children_counts() -> None:
    before = used_seconds()
    in_process = processor_time(fixed_work)
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert used_seconds() - before > in_process > 0
