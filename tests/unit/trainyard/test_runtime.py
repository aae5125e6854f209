"""The rule of a job's runtime in Python; tests/web/test_modules.py has that of the pages."""

from datetime import datetime

import pytest

from tests.support.runtimes import NOW, RUNTIMES
from trainyard.contract.runtime import runtime_seconds


@pytest.mark.parametrize(("started_at", "finished_at", "seconds"), RUNTIMES)
def test_runtime_is_from_the_start_to_the_end_or_until_now(started_at, finished_at, seconds):
    started, finished = (text and datetime.fromisoformat(text) for text in (started_at, finished_at))
    assert runtime_seconds(started, finished, NOW) == seconds
