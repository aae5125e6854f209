"""`bench.reconcile` measures ticks that change nothing."""

import os
from unittest.mock import patch

from bench.reconcile import measure


def test_the_programs_list_every_job_so_that_no_status_changes(tmp_path):
    with patch.dict(os.environ):
        result = measure(tmp_path, jobs=100, ticks=1)
    assert not result["changed"]
    assert result["statements"] < 30
    assert result["max_commands_per_tick"] <= 3
