"""Random orders of faults on a real Slurm, as in tests/faults/test_random_faults.py."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.test_cancel import ALIVE, processes_below
from tests.slurm.test_service_killed import COUNT_PROGRAM, spec
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import TrainyardError
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1500)]

ACTIONS, MAX_JOBS = 40, 12
FAST_CONFIRMATION = {"slurm_submit_timeout_seconds": "20", "slurm_confirm_absence_seconds": "15"}
"""Settings with which an unconfirmed submission is resolved in less than a minute instead of eight."""


class Campaign:
    """The events that happen to a service and its cluster; each method returns when its event is over."""

    def __init__(self, slurm: SlurmLab, service: ServiceProcess, code: Path, rng: random.Random) -> None:
        self._slurm, self._service, self._code, self._rng = slurm, service, code, rng
        self._controller = True
        self.jobs: list[str] = []
        self.cancelled: set[str] = set()

    def actions(self) -> list[Callable[[], None]]:
        ours = [self.submit, self.submit, self.cancel, self.kill_service]
        return [*ours, self.toggle_controller, self.scancel_job, self.preempt]

    def submit(self) -> None:
        if len(self.jobs) < MAX_JOBS:
            name = f"job-{len(self.jobs)}"
            with self._service.client() as client:
                self.jobs.append(client.submit(spec(name), code=self._code, idempotency_key=name).id)

    def cancel(self) -> None:
        if self.jobs:
            job = self._rng.choice(self.jobs)
            with self._service.client() as client, suppress(TrainyardError):
                client.cancel(job)
                self.cancelled.add(job)

    def kill_service(self) -> None:
        self._service.kill()
        self._service.start()

    def toggle_controller(self) -> None:
        (self._slurm.stop_controller if self._controller else self._slurm.start_controller)()
        self._controller = not self._controller

    def scancel_job(self) -> None:
        if self._controller:
            with suppress(RuntimeError):
                for number, _, _ in self._slurm.jobs(states="PENDING,RUNNING")[:1]:
                    self._slurm.run("scancel", number)

    def preempt(self) -> None:
        if self._controller:
            with suppress(RuntimeError):
                self._slurm.run("sbatch", "-p", "high", "--exclusive", "--output=/dev/null", "--wrap", "true")

    def recover(self) -> None:
        if not self._controller:
            self.toggle_controller()


@pytest.mark.parametrize("seed", [1])
def test_job_completes_under_any_order_of_faults(seed: int, slurm: SlurmLab, tmp_path: Path) -> None:
    run_log, code = tmp_path / "run_log", tmp_path / "code"
    code.mkdir()
    run_log.touch()
    (code / "count.py").write_text(COUNT_PROGRAM.format(run_log=str(run_log)))
    rng = random.Random(seed)
    with slurm_service(tmp_path, **FAST_CONFIRMATION) as service:
        campaign = Campaign(slurm, service, code, rng)
        campaign.submit()
        try:
            for _ in range(ACTIONS):
                rng.choice(campaign.actions())()
        finally:
            campaign.recover()
        with service.client() as client:
            wait_until(lambda: {job.status for job in client.jobs()} <= TERMINAL, 600, "all jobs to end")
            jobs = {job.id: job for job in client.jobs()}
            attempts = {job: list(client.attempts(job)) for job in jobs}
        assert set(jobs) == set(campaign.jobs), "the jobs are not those that were submitted"
        for job in jobs.values():
            assert job.status in ("succeeded", "cancelled"), job.status_message
            if job.status == "cancelled" and job.id not in campaign.cancelled:
                assert job.status_reason == "cancelled_outside"
        wait_until(lambda: not slurm.jobs(states=ALIVE), 60, "an empty queue")
        wait_until(lambda: not processes_below(service.runs_dir), 30, "no process to be left")
    ran = Counter(tuple(line.split()) for line in run_log.read_text().splitlines())
    assert set(ran.values()) <= {1}, "an attempt ran twice"
    known = {str(attempt.scheduler_id) for of_one_job in attempts.values() for attempt in of_one_job}
    assert {number for _, number in ran} <= known, "something ran of which the service knows nothing"
    names = {jobs[job].name for job in jobs if jobs[job].status == "succeeded"}
    assert names <= {name for name, _ in ran}
