"""Whether the ranks of a program have met, with torch's own process group."""

from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code
from worker.launcher.rank_meeting import EVENT

PROGRAM = """
import sys, time
import torch.distributed as dist

if sys.argv[1] == "together":
    dist.init_process_group("gloo")
time.sleep(35)
if sys.argv[1] == "together":
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "count"), [("together", 0), ("alone", 1)])
def test_ranks_that_never_meet_are_a_warning(tmp_path: Path, mode: str, count: int) -> None:
    document = {"task": "script", "argv": ["train.py", mode], "code": store_code(tmp_path, PROGRAM), "gpus": 2}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0)
        attempt = run.start()
        run.wait(180)
        assert finish_of(attempt, 1).reason == "completed"
        assert len(service.events_of_type(EVENT)) == count
