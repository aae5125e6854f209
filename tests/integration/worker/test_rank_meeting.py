"""Whether the ranks of a program have met, with torch's own process group."""

from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, launch, store_code
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


SHORT_PATIENCE = (
    "-c",
    "import sys; from worker.launcher import rank_meeting, supervise; "
    "rank_meeting.PATIENCE_SECONDS = 2; supervise.run(sys.argv[1])",
)


@pytest.mark.cpu_seconds(8)
def test_ranks_that_never_meet_end_a_job_whose_spec_demands_it(tmp_path: Path) -> None:
    code = store_code(tmp_path, "import time\n\ntime.sleep(60)")
    document = {"task": "script", "argv": ["train.py"], "code": code, "gpus": 2, "health": {"stop_if_unused": True}}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)
        attempt = run.prepare()
        run.process = launch(attempt, program=SHORT_PATIENCE)
        run.wait(50)
    record = finish_of(attempt, 1)
    assert record.failure is not None
    assert (record.reason, record.failure.type, record.failure.final) == ("error", "RanksNeverMet", True)
    assert record.failure.message.startswith("2 ranks have not met")


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
