"""Observation: the commands that are called, how often, and the results."""

import os
from pathlib import Path

import pytest

from service.scheduler.base import SchedulerUnavailableError, SubmittedJob
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.slurm.conftest import slurm_service
from tests.slurm.specs import long_run
from tests.support.live import wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.slurm_wrappers import count_calls, install
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

NOWHERE = Path("/nowhere/job/attempts/1")
"""The folder of an attempt that left nothing on disk."""


def submit(slurm: SlurmLab, name: str, *options: str) -> SubmittedJob:
    answer = slurm.run("sbatch", "--parsable", "--output=/dev/null", "-J", name, *options, "--wrap", "sleep 60")
    return SubmittedJob(name, answer.split(";")[0].strip(), NOWHERE)


@pytest.mark.fault_scenario(19)
def test_tick_observes_twenty_jobs_with_two_calls(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [submit(slurm, f"ty-many-{number}", "--hold") for number in range(20)]
    unknown = SubmittedJob("ty-gone", "999999", NOWHERE)
    log = tmp_path / "calls"
    count_calls(tmp_path / "bin", log, monkeypatch)
    scheduler = SlurmScheduler()
    observed = scheduler.observe([*known, unknown])
    assert scheduler.observe([*known, unknown]) == observed, "asked again too soon, it repeats itself"
    assert scheduler.observe([SubmittedJob("ty-new", "999998", NOWHERE)])["ty-new"].state == "pending"
    assert {observed[one.tag].state for one in known} == {"pending"}
    assert "held by this service's Slurm account" in observed["ty-many-0"].message
    assert observed["ty-gone"].state == "absent"
    assert sorted(log.read_text().split()) == ["sacct", "squeue"]


@pytest.mark.fault_scenario(20)
def test_reused_id_with_another_name_is_another_job(slurm: SlurmLab) -> None:
    mine = submit(slurm, "ty-mine", "--hold")
    reused_id = SubmittedJob("ty-other", mine.scheduler_id, mine.folder)
    scheduler = SlurmScheduler(poll_seconds=0)
    assert scheduler.observe([reused_id])["ty-other"].state == "absent"
    scheduler.cancel(reused_id)
    assert scheduler.observe([mine])["ty-mine"].state == "pending"
    assert SlurmScheduler().find("ty-mine", NOWHERE) == [mine.scheduler_id]
    scheduler = SlurmScheduler(poll_seconds=0)
    scheduler.cancel(mine)
    wait_until(lambda: scheduler.observe([mine])["ty-mine"].end_state == "cancelled", 20, "its end")


@pytest.mark.fault_scenario(20, 43)
def test_renamed_job_stays_the_same_job(slurm: SlurmLab, tmp_path: Path) -> None:
    submitted = submit(slurm, "ty-renamed", "--hold", f"--chdir={tmp_path}")
    mine = SubmittedJob("ty-renamed", submitted.scheduler_id, tmp_path)
    slurm.run("scontrol", "update", f"jobid={mine.scheduler_id}", "name=for ada")
    scheduler = SlurmScheduler(poll_seconds=0)
    assert scheduler.observe([mine])["ty-renamed"].state == "pending"
    assert SlurmScheduler().find("ty-renamed", tmp_path) == [mine.scheduler_id]
    scheduler.cancel(mine)
    wait_until(lambda: scheduler.observe([mine])["ty-renamed"].end_state == "cancelled", 20, "its end")


def test_a_failing_controller_gives_no_observation(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", "squeue", "echo it is on fire >&2; exit 1", monkeypatch)
    with pytest.raises(SchedulerUnavailableError, match="on fire"):
        SlurmScheduler().observe([SubmittedJob("ty-gone", "999999", NOWHERE)])


def test_failing_accounting_gives_no_observation_of_unlisted_jobs(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = submit(slurm, "ty-mine", "--hold")
    install(tmp_path / "bin", "sacct", "echo it is on fire >&2; exit 1", monkeypatch)
    observed = SlurmScheduler().observe([mine, SubmittedJob("ty-gone", "999999", NOWHERE)])
    assert {tag: one.state for tag, one in observed.items()} == {"ty-mine": "pending"}


def test_one_empty_answer_of_the_queue_changes_no_job(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is complete, but lacks all jobs, such as that of another controller for a moment."""
    empty, answers = tmp_path / "empty", tmp_path / "answers"
    body = f'rm {empty} 2>/dev/null && exit 0; $REAL "$@" && echo >> {answers}'
    install(tmp_path / "bin", "squeue", body, monkeypatch)
    with slurm_service(tmp_path) as service, service.client() as client:
        slurm.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
        wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the nodes to be taken")
        job = client.submit(long_run()).id
        wait_for_status(client, job, "pending")
        for _ in range(3):
            empty.touch()
            wait_until(lambda: not empty.exists(), 30, "the empty answer")
            answers.write_text("")
            wait_until(lambda: len(answers.read_text()) >= 2, 30, "the next answers")
        assert "lost" not in [event.data.get("status") for event in client.events(job)]
        assert client.job(job).status == "pending"
        assert len(list(client.attempts(job))) == 1


def test_output_format_variables_of_the_account_are_ignored(slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = submit(slurm, "ty-formats", "--hold")
    monkeypatch.setenv("SQUEUE_FORMAT", "%t")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert SlurmScheduler().observe([mine])["ty-formats"].state == "pending"
    assert os.environ["SQUEUE_FORMAT"] == "%t"
