"""The service is killed at moments that nobody chose: every job runs, and once."""

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
COUNTING = """
import os, sys
line = " ".join([sys.argv[1], os.environ["SLURM_JOB_ID"]]) + "\\n"
handle = os.open({book!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(handle, line.encode())
"""


def spec(name: str) -> dict[str, Any]:
    """A script of one process, four at a time on the lab; it writes one line and is done."""
    where = {"partition": "gpu", "gpus_per_node": 1, "cpus_per_gpu": 4}
    return {"name": name, "task": "script", "argv": ["count.py", name], "gpus": 1, "resources": where}


def submit_insistently(service: ServiceProcess, name: str, code: Path) -> None:
    """As a program does that repeats itself until it has an answer."""
    while True:
        with suppress(TrainyardError, DemoError, OSError), service.client() as client:
            client.submit(spec(name), code=code, idempotency_key=name)
            return


def test_thirty_jobs_run_once_each(slurm: SlurmLab, tmp_path: Path, database_url: str) -> None:
    book, code = tmp_path / "book", tmp_path / "code"
    code.mkdir()
    (code / "count.py").write_text(COUNTING.format(book=str(book)))
    before = {number for number, _, _ in slurm.jobs()}
    names = [f"job-{number}" for number in range(JOBS)]
    entries: dict[str, tuple[str, str]] = {}

    def record_entries() -> None:
        """Again and again: this controller forgets what ended five minutes ago."""
        entries.update({number: (name, state) for number, name, state in slurm.jobs() if number not in before})

    def all_over(client: Client) -> bool:
        record_entries()
        return {job.status for job in client.jobs()} <= TERMINAL

    chance = random.Random(20)
    with slurm_service(tmp_path, database_url=database_url) as service, ThreadPoolExecutor(1) as client_of_its_own:
        submitted = client_of_its_own.submit(lambda: [submit_insistently(service, name, code) for name in names])
        for _ in range(KILLS):
            # The moment is what is random here; nothing is waited for.
            time.sleep(chance.uniform(0.5, 6.0))
            service.kill()
            service.start()
            record_entries()
        submitted.result(120)
        with service.client() as client:
            wait_until(lambda: all_over(client), 900, "all jobs to be over")
            record_entries()
            jobs = list(client.jobs())
            assert {job.name: job.status for job in jobs} == dict.fromkeys(names, "succeeded")
            assert len(jobs) == JOBS
            ids = [attempt.scheduler_id for job in jobs for attempt in client.attempts(job.id)]
    ran = [line.split() for line in book.read_text().splitlines()]
    assert sorted(name for name, _ in ran) == sorted(names)
    assert sorted(entries) == sorted(number for _, number in ran) == sorted(map(str, ids))
    assert len({name for name, _ in entries.values()}) == JOBS
    assert {state for _, state in entries.values()} == {"COMPLETED"}
