"""The service is killed at random times: each job runs exactly once."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client, TrainyardError
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.demo import DemoError, ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1500)]

JOBS, KILLS = 30, 20
COUNT_PROGRAM = """
import os, sys
line = " ".join([sys.argv[1], os.environ["SLURM_JOB_ID"]]) + "\\n"
handle = os.open({run_log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(handle, line.encode())
"""


def spec(name: str) -> dict[str, Any]:
    """Return the spec of a script with one process, which writes a line and exits; four fit on the lab."""
    where = {"partition": "gpu", "gpus_per_node": 1, "cpus_per_gpu": 4}
    return {"name": name, "task": "script", "argv": ["count.py", name], "gpus": 1, "resources": where}


def submit_with_retries(service: ServiceProcess, name: str, code: Path) -> None:
    """Submit a job, and repeat the request until there is a response."""
    while True:
        with suppress(TrainyardError, DemoError, OSError), service.client() as client:
            client.submit(spec(name), code=code, idempotency_key=name)
            return


@pytest.mark.fault_scenario(54)
def test_thirty_jobs_run_once_each(slurm: SlurmLab, tmp_path: Path, database_url: str) -> None:
    run_log, code = tmp_path / "run_log", tmp_path / "code"
    code.mkdir()
    (code / "count.py").write_text(COUNT_PROGRAM.format(run_log=str(run_log)))
    before = {number for number, _, _ in slurm.jobs()}
    names = [f"job-{number}" for number in range(JOBS)]
    entries: dict[str, tuple[str, str]] = {}

    def record_entries() -> None:
        """Record the entries; repeated, because the controller purges jobs five minutes after their end."""
        entries.update({number: (name, state) for number, name, state in slurm.jobs() if number not in before})

    def have_all_ended(client: Client) -> bool:
        record_entries()
        return {job.status for job in client.jobs()} <= TERMINAL

    rng = random.Random(20)
    with slurm_service(tmp_path, database_url=database_url) as service, ThreadPoolExecutor(1) as executor:
        submitted = executor.submit(lambda: [submit_with_retries(service, name, code) for name in names])
        for _ in range(KILLS):
            # A random time between two kills; the pause waits for nothing.
            time.sleep(rng.uniform(0.5, 6.0))
            service.kill()
            service.start()
            record_entries()
        submitted.result(120)
        with service.client() as client:
            wait_until(lambda: have_all_ended(client), 900, "all jobs to be over")
            record_entries()
            jobs = list(client.jobs())
            assert {job.name: job.status for job in jobs} == dict.fromkeys(names, "succeeded")
            assert len(jobs) == JOBS
            ids = [attempt.scheduler_id for job in jobs for attempt in client.attempts(job.id)]
    ran = [line.split() for line in run_log.read_text().splitlines()]
    assert sorted(name for name, _ in ran) == sorted(names)
    assert sorted(entries) == sorted(number for _, number in ran) == sorted(map(str, ids))
    assert len({name for name, _ in entries.values()}) == JOBS
    assert {state for _, state in entries.values()} == {"COMPLETED"}
