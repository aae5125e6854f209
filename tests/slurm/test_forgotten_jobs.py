"""The end of a purged job is taken from the accounting, else from the exit record, else it is unknown."""

from contextlib import suppress
from pathlib import Path

import pytest

from service.scheduler.base import SubmittedJob
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.slurm.conftest import slurm_service
from tests.slurm.specs import long_run, on_two_nodes, parity
from tests.slurm.test_first_path import scheduler_id
from tests.support.live import attempt_of, losses, run_of, wait_for_status, wait_for_step
from tests.support.paced import SLOWLY, Pace
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client

pytestmark = pytest.mark.slurm

NOWHERE = Path("/nowhere/job/attempts/1")
"""The folder of an attempt that left nothing on disk."""


def wait_until_purged(slurm: SlurmLab, *, number: str = "", name: str = "") -> None:
    """Wait until the controller has purged the job."""
    wait_until(lambda: not [1 for n, tag, _ in slurm.jobs() if number == n or name == tag], 90, "it to be forgotten")


def kill(slurm: SlurmLab, number: str) -> None:
    """End a job so that it writes no exit record."""
    slurm.run("scancel", "--signal=KILL", "--full", number)
    # A job that has ended in the meantime cannot be cancelled.
    with suppress(RuntimeError):
        slurm.run("scancel", number)


@pytest.mark.fault_scenario(13)
@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("exit 3", [], ("failed", "exit code 3:0")),
        ("true", [], ("completed", "exit code 0:0")),
        ("sleep 300", ["--begin=now+1hour"], ("cancelled", "CANCELLED")),
    ],
)
def test_accounting_reports_how_an_unlisted_job_ended(
    command: str, options: list[str], expected: tuple[str, str], accounted: SlurmLab
) -> None:
    name = f"ty-{expected[0]}"
    arguments = ["sbatch", "--parsable", "--output=/dev/null", "-J", name, *options, "--wrap", command]
    number = accounted.run(*arguments).strip()
    if options:
        accounted.run("scancel", number)
    known = SubmittedJob(name, number, NOWHERE)
    wait_until_purged(accounted, number=number)
    scheduler = SlurmScheduler(poll_seconds=0)
    observed = wait_until(lambda: _ended(scheduler, known), 30, "the record")
    assert observed.end_state == expected[0]
    assert expected[1] in observed.message
    assert SlurmScheduler().find(name, NOWHERE) == [number], "an ambiguous submission would find it too"


def _ended(scheduler: SlurmScheduler, known: SubmittedJob):  # type: ignore[no-untyped-def]
    observed = scheduler.observe([known])[known.tag]
    return observed if observed.state == "ended" else None


@pytest.mark.fault_scenario(11)
def test_no_conclusion_without_an_answer_of_the_accounting(accounted: SlurmLab) -> None:
    accounted.stop_accounting()
    try:
        assert SlurmScheduler().observe([SubmittedJob("ty-gone", "999999", NOWHERE)]) == {}
    finally:
        accounted.start_accounting()
    wait_until(lambda: _answers(accounted), 30, "slurmdbd")


def _answers(slurm: SlurmLab) -> bool:
    with suppress(RuntimeError):
        slurm.run("sacct", "--noheader")
        return True
    return False


def test_job_killed_and_unlisted_during_an_outage_is_resolved(accounted: SlurmLab, tmp_path: Path) -> None:
    with slurm_service(tmp_path) as service:
        with service.client() as client:
            job = client.submit(long_run())
            wait_for_step(client, job.id, 3)
            number = scheduler_id(client, job.id)
        service.kill()
        kill(accounted, number)
        wait_until_purged(accounted, number=number)
        service.start()
        with service.client() as client:
            done = wait_for_status(client, job.id, "cancelled", "failed", "lost", "succeeded", seconds=60)
            assert (done.status, done.status_reason) == ("cancelled", "cancelled_outside")


@pytest.mark.fault_scenario(19)
def test_accounting_separates_a_cancellation_from_an_evacuation(accounted: SlurmLab, tmp_path: Path) -> None:
    """Root cancels the job twice: first with a node that was drained, then with all nodes in service."""
    with slurm_service(tmp_path) as service, service.client() as client:
        job = client.submit(long_run())
        wait_for_step(client, job.id, 3)
        accounted.run("scontrol", "update", "nodename=node1", "state=drain", "reason=kernel update")
        accounted.run("scancel", scheduler_id(client, job.id))
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 60, "a next attempt")
        accounted.run("scontrol", "update", "nodename=node1", "state=resume")
        wait_for_status(client, job.id, "running")
        accounted.run("scancel", scheduler_id(client, job.id))
        done = wait_for_status(client, job.id, "cancelled", "failed", "lost", "succeeded", seconds=60)
        assert done.status_message.startswith(
            "Cancelled by an administrator (root) with `scancel` (Slurm: CANCELLED by 0"
        )
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert (first.exit_reason, second.exit_reason) == ("node_failure", "user_cancelled")
        assert "CANCELLED by 0" in str(first.scheduler_end)
        assert "node1 is drained: kernel update" in str(first.scheduler_end)


@pytest.mark.fault_scenario(14)
def test_preempted_job_is_continued_by_the_service_not_requeued(
    accounted: SlurmLab, tmp_path: Path, pace: Pace
) -> None:
    with slurm_service(tmp_path) as service, service.client() as client:
        pace.set(SLOWLY)
        job = client.submit(on_two_nodes(steps=150), code=pace.code)
        wait_for_step(client, job.id, 7)
        accounted.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 2")
        wait_until(lambda: len(list(client.attempts(job.id))) == 2, 120, "a next attempt")
        pace.set(0)
        done = wait_for_status(client, job.id, "succeeded", "failed", "cancelled", "lost", seconds=200)
        assert done.status == "succeeded", done.status_message
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert (first.exit_reason, first.scheduler_id != second.scheduler_id) == ("preempted", True)
        assert sorted(losses(client, job.id)) == list(range(1, 151))


class TestWithoutAccounting:
    @pytest.mark.fault_scenario(11)
    def test_exit_record_on_disk_is_used(self, purging_lab: SlurmLab, tmp_path: Path) -> None:
        with slurm_service(tmp_path) as service:
            job_id, number = _submitted(service.client(), parity())
            service.kill()
            wait_until_purged(purging_lab, number=number)
            service.start()
            with service.client() as client:
                done = wait_for_status(client, job_id, "succeeded", "failed", "lost", seconds=60)
                assert done.status == "succeeded", done.status_message
                assert sorted(losses(client, job_id)) == list(range(1, 31))

    @pytest.mark.fault_scenario(13)
    def test_job_without_an_exit_record_is_lost(self, purging_lab: SlurmLab, tmp_path: Path) -> None:
        with slurm_service(tmp_path) as service:
            job_id, number = _submitted(service.client(), long_run())
            with service.client() as client:
                wait_for_step(client, job_id, 3)
            service.kill()
            kill(purging_lab, number)
            wait_until_purged(purging_lab, number=number)
            for record in attempt_of(run_of(service.runs_dir, job_id), 1).root.glob("finish-*.json"):
                # Slurm may kill the ranks before their launcher, which then writes an exit record.
                record.unlink()
            service.start()
            with service.client() as client:
                lost = wait_for_status(client, job_id, "lost", "failed", "cancelled", "queued", seconds=60)
                assert lost.status == "lost"
                assert "no exit record" in lost.status_message
                client.cancel(job_id)
                stopping = wait_for_status(client, job_id, "cancelling", "cancelled", seconds=60)
                assert stopping.status == "cancelling", "the end of a job without a record stays unknown"


def _submitted(client: Client, spec: dict[str, object]) -> tuple[str, str]:
    with client:
        job = client.submit(spec)
        return job.id, scheduler_id(client, job.id)
