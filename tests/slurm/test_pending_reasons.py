"""Reasons of pending jobs and the cluster snapshot, from a real Slurm."""

import getpass
from pathlib import Path

import pytest

from service.scheduler.base import Observation, SubmittedJob
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.slurm.conftest import slurm_service
from tests.slurm.specs import parity
from tests.support.live import wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm

_FULL = ("-N2", "--exclusive", "--time=30")


def sbatch(slurm: SlurmLab, name: str, *options: str) -> SubmittedJob:
    arguments = ["sbatch", "--parsable", "--output=/dev/null", "-p", "gpu", "-J", name, *options, "--wrap", "sleep 300"]
    return SubmittedJob(name, slurm.run(*arguments).strip(), Path("/nowhere"))


def wait_for_message(known: SubmittedJob, part: str) -> Observation:
    """Wait until the observation's message contains `part`."""
    scheduler = SlurmScheduler(poll_seconds=0)

    def observed() -> Observation | None:
        reported = scheduler.observe([known])[known.tag]
        return reported if reported.state == "pending" and part in reported.message else None

    return wait_until(observed, 30, f"{known.tag} to wait with {part!r}")


def test_resources_reason_has_an_estimated_start(slurm: SlurmLab) -> None:
    sbatch(slurm, "ty-first", *_FULL)
    second = sbatch(slurm, "ty-second", *_FULL)
    observed = wait_for_message(
        second, "next to start when enough nodes are free (Resources). Slurm estimates the start by"
    )
    assert observed.estimated_start is not None


def test_priority_reason_has_the_number_of_jobs_ahead(slurm: SlurmLab) -> None:
    for name in ("ty-first", "ty-second", "ty-third"):
        sbatch(slurm, name, *_FULL)
    held = sbatch(slurm, "ty-held", "--hold", *_FULL)
    last = sbatch(slurm, "ty-last", *_FULL)
    assert "(Priority). 2 jobs ahead in partition gpu." in wait_for_message(last, "2 jobs").message
    assert "(JobHeldUser). `scontrol release` releases it." in wait_for_message(held, "JobHeldUser").message


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("-p", "minute", "--time=5"), "(PartitionTimeLimit). Lower resources.time_limit_minutes"),
        (("--begin=now+1hour",), "begin time is in the future"),
    ],
)
def test_reasons_other_than_resources(options: tuple[str, ...], part: str, slurm: SlurmLab) -> None:
    wait_for_message(sbatch(slurm, "ty-odd", *options), part)


def test_too_many_nodes_wait_or_are_refused(slurm: SlurmLab) -> None:
    """Slurm 22.05 lets the job wait; 24.11 refuses it, which rejects a job of the service."""
    if slurm.release < (23, 2):
        wait_for_message(sbatch(slurm, "ty-odd", "-N3"), "(PartitionNodeLimit). Lower gpus")
        return
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        sbatch(slurm, "ty-odd", "-N3")


def test_drained_nodes_are_reported(slurm: SlurmLab) -> None:
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=a test")
    try:
        wait_for_message(sbatch(slurm, "ty-both", "-N2"), "down, drained or reserved for jobs with higher priority")
    finally:
        slurm.run("scontrol", "update", "nodename=node2", "state=resume")


def test_cluster_snapshot_has_partitions_nodes_and_gpus(slurm: SlurmLab) -> None:
    sbatch(slurm, "ty-gpu", "-N1", "--gres=gpu:1", "-w", "node1")
    scheduler = SlurmScheduler()
    reported = wait_until(
        lambda: (observed := scheduler.cluster()).gpus[0].free == 3 and observed, 30, "a GPU to be taken"
    )
    assert [(gpu.type, gpu.total) for gpu in reported.gpus] == [(None, 4)]
    assert sum(reported.nodes.values()) == 2
    partitions = {partition.name: partition for partition in reported.partitions}
    assert set(partitions) == {"gpu", "high", "minute"}
    assert [name for name, partition in partitions.items() if partition.default] == ["gpu"]
    assert (partitions["minute"].time_limit_minutes, partitions["gpu"].time_limit_minutes) == (1, None)


def test_the_service_reports_reasons_and_the_cluster(service: ServiceProcess, slurm: SlurmLab) -> None:
    with service.client() as client:
        reported = wait_until(lambda: (observed := client.cluster()).taken_at and observed, 30, "the first snapshot")
        assert sorted(partition.name for partition in reported.partitions) == ["gpu", "high", "minute"]
        for changes, part in (
            ({"resources__partition": "gqu"}, "there is no partition `gqu` (did you mean `gpu`?)"),
            (
                {"resources__partition": "minute", "resources__time_limit_minutes": 9},
                "9 exceeds the limit of partition minute",
            ),
            ({"resources__gpus_per_node": 1}, "requests 4 nodes, but a job in partition gpu can have 2"),
        ):
            refused = wait_for_status(client, client.submit(parity(**changes)).id, "failed", seconds=30)
            assert part in refused.status_message
            assert refused.status_reason == "rejected"
            assert refused.attempt is None
        sbatch(slurm, "ty-first", *_FULL)
        wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the nodes to be taken")
        waiting = client.submit(parity())
        shown = wait_until(lambda: (job := client.job(waiting.id)).estimated_start and job, 60, "an estimated start")
        assert "(Resources). Slurm estimates the start by" in shown.status_message
        client.cancel(waiting.id)
        wait_for_status(client, waiting.id, "cancelled", seconds=60)


def test_a_job_waits_for_a_licence(service: ServiceProcess, slurm: SlurmLab) -> None:
    holder = slurm.run("sbatch", "--parsable", "--licenses=tokens:4", "--output=/dev/null", "--wrap", "sleep 300")
    wait_until(lambda: slurm.jobs(states="RUNNING"), 30, "the licences to be taken")
    with service.client() as client:
        job, unknown = (
            client.submit(parity(resources__options={"licenses": licence})).id for licence in ("tokens:1", "matlab:1")
        )
        waiting = "Waiting in Slurm: a license is in use by other jobs (Licenses)."
        wait_until(lambda: client.job(job).status_message == waiting, 60, "the reason")
        refused = wait_for_status(client, unknown, "failed", seconds=60)
        assert (refused.status_reason, "Invalid license specification" in refused.status_message) == ("rejected", True)
        assert client.job(job).status == "pending"
        slurm.run("scancel", holder.strip())
        wait_for_status(client, job, "running", "succeeded", seconds=60)


def test_account_without_access_error_lists_allowed_accounts(accounted: SlurmLab, tmp_path: Path) -> None:
    accounted.run("sacctmgr", "--immediate", "add", "account", "physics")
    accounted.run("sacctmgr", "--immediate", "add", "user", getpass.getuser(), "account=physics")
    with slurm_service(tmp_path) as service, service.client() as client:
        reported = wait_until(
            lambda: (observed := client.cluster()).accounts and observed, 30, "the accounts to be told"
        )
        assert "physics" in {account.name for account in reported.accounts or []}
        assert "account" in reported.enforced
        refused = wait_for_status(client, client.submit(parity(resources__account="phisics")).id, "failed", seconds=30)
        assert "resources.account: the service may not use account `phisics`" in refused.status_message
        assert "did you mean `physics`?" in refused.status_message
        taken = client.submit(parity(resources__account="physics"))
        done = wait_for_status(client, taken.id, "succeeded", "failed")
        assert done.status == "succeeded", done.status_message


@pytest.mark.fault_scenario(45)
def test_jobs_over_the_account_limit_are_submitted_later(accounted: SlurmLab, tmp_path: Path) -> None:
    accounted.run("sacctmgr", "--immediate", "add", "account", "chemistry")
    who = ("user", getpass.getuser(), "account=chemistry")
    accounted.run("sacctmgr", "--immediate", "add", *who, "maxsubmitjobs=1")
    with slurm_service(tmp_path) as service, service.client() as client:
        jobs = [client.submit(parity(resources__account="chemistry")).id for _ in range(2)]
        message = "The limit of queued jobs of the Slurm account or QOS is reached (AssocMaxSubmitJobLimit)."
        wait_until(lambda: any(message in client.job(job).status_message for job in jobs), 30, "one to be told to wait")
        for job in jobs:
            done = wait_for_status(client, job, "succeeded", "failed", seconds=120)
            assert done.status == "succeeded", done.status_message
            assert done.attempt is not None
            assert done.attempt.number == 1
