"""slurmdbd is down while a job is cancelled: the cause is corrected when it answers."""

from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.specs import long_run
from tests.support.live import wait_for_status
from tests.support.slurm_lab import Variant, running_lab
from tests.support.wait import wait_until
from trainyard.client import Client

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]


def wait_for_attempt(client: Client, job: str, number: int) -> str:
    """Return the scheduler id of the attempt when it runs."""

    def scheduler_id() -> str | None:
        shown = client.job(job)
        is_there = shown.attempt is not None and shown.attempt.number == number and shown.status == "running"
        return shown.attempt.scheduler_id if is_there and shown.attempt else None

    return str(wait_until(scheduler_id, 120, f"attempt {number} to run"))


def test_who_cancelled_a_job_is_learned_minutes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_lab(Variant(accounting=True, kill_wait=3)) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        with slurm_service(tmp_path) as service, service.client() as client:
            job = client.submit(long_run()).id
            first = wait_for_attempt(client, job, 1)
            slurm.stop_accounting()
            slurm.run("scancel", first)
            slurm.run("scancel", wait_for_attempt(client, job, 2))
            ended = wait_for_status(client, job, "cancelled", seconds=120)
            assert ended.status_message.startswith("Cancelled outside Trainyard, such as by `scancel`")
            slurm.start_accounting()
            by_root = "Cancelled by an administrator (root) with `scancel` (Slurm: CANCELLED by 0"
            wait_until(lambda: client.job(job).status_message.startswith(by_root), 150, "the cause to be corrected")
            explained = [event for event in client.events(job) if event.type == "end_explained"]
            assert sorted(event.data["attempt"] for event in explained) == [1, 2]
            assert [attempt.exit_reason for attempt in client.attempts(job)] == ["user_cancelled"] * 2
