"""What `doctor` concludes from Slurm's answers; the texts are those of Slurm 22.05."""

import pytest

from service.diagnostics.slurm_checks import requests_finding
from service.diagnostics.slurm_times import ended_jobs_finding, preemption_grace, saves_finding
from service.scheduler.slurm.sbatch_output import parse_forecast

CONFIGURATION = """\
AccountingStorageType   = {accounting}
KillWait                = 30 sec
MinJobAge               = {age} sec
PreemptType             = preempt/partition_prio
"""
PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL Default=YES GraceTime=15 MaxTime=UNLIMITED PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=low AllowGroups=ALL Default=NO GraceTime=60 MaxTime=UNLIMITED PriorityTier=1 PreemptMode=SUSPEND State=UP
PartitionName=high AllowGroups=ALL Default=NO GraceTime=0 MaxTime=UNLIMITED PriorityTier=10 PreemptMode=REQUEUE State=UP
"""
ACCEPTED = parse_forecast(0, "sbatch: Job 7 to start at 2026-01-02T03:04:05 using 1 processors on nodes node1 in gpu\n")
REFUSED = parse_forecast(1, "sbatch: error: site: no job without an account\nallocation failure: Unspecified error\n")
CLOSED = parse_forecast(1, "allocation failure: User's group not permitted to use this partition\n")


class TestRequests:
    def test_partitions_that_are_closed_to_the_account_are_usual(self) -> None:
        finding = requests_finding("memory by mem", {"gpu": ACCEPTED, "bio": CLOSED}, untested=2)
        assert (finding.state, finding.message) == (
            "ok",
            "memory by mem; accepted in partition gpu; not open to this account: bio; 2 partitions were not tested",
        )

    def test_a_policy_of_one_partition_is_a_warning_with_its_text(self) -> None:
        finding = requests_finding("memory by mem", {"gpu": ACCEPTED, "long": REFUSED})
        assert finding.state == "warning"
        assert "partition long: " in finding.message
        assert "site: no job without an account" in finding.message
        assert "gpu" not in finding.message

    def test_partitions_that_are_all_closed_are_a_warning(self) -> None:
        finding = requests_finding("memory by mem", {"bio": CLOSED})
        assert (finding.state, "partition bio" in finding.message) == ("warning", True)

    def test_a_cluster_whose_partitions_are_all_down_has_nothing_to_test(self) -> None:
        assert requests_finding("memory by mem", {}).message == "no partition is up"


@pytest.mark.parametrize(
    ("accounting", "age", "state"),
    [
        ("accounting_storage/none", 5, "warning"),
        ("accounting_storage/none", 69, "warning"),
        ("accounting_storage/none", 70, "ok"),
        ("accounting_storage/none", 0, "ok"),
        ("accounting_storage/slurmdbd", 5, "ok"),
    ],
)
def test_ended_jobs_have_to_be_listed_until_the_next_poll(accounting: str, age: int, state: str) -> None:
    finding = ended_jobs_finding(CONFIGURATION.format(accounting=accounting, age=age), max_poll_seconds=60)
    assert finding.state == state
    assert (finding.fix is not None and "MinJobAge=70" in finding.fix) == (state == "warning")


class TestSaves:
    def test_partitions_whose_jobs_others_end_have_a_grace_time(self) -> None:
        assert preemption_grace(PARTITIONS, "") == {"partition gpu": 15}

    def test_with_preemption_by_qos_the_preempted_qos_has_the_grace_time(self) -> None:
        qos = "normal|00:00:00|\nscavenger|00:02:30|\nlong|1-00:00:10|\nurgent|00:00:00|scavenger,long\n"
        assert preemption_grace(PARTITIONS, qos) == {"QOS scavenger": 150, "QOS long": 86410}

    @pytest.mark.parametrize(
        ("longest", "short"),
        [
            (36.0, ()),
            (36.1, ("a preempted job of partition gpu",)),
            (200.0, ("a preempted job of partition gpu", "a job at its time limit")),
        ],
    )
    def test_a_save_that_takes_longer_than_slurm_waits_is_a_warning(self, longest: float, short: tuple[str]) -> None:
        finding = saves_finding(longest, {"partition gpu": 15}, kill_wait=30, lead=180)
        assert finding.state == ("warning" if short else "ok")
        assert finding.message.endswith("of partition gpu has 45 s, a job at its time limit has 210 s")
        assert (finding.fix or "").endswith(", ".join(short))

    def test_without_a_measured_save_the_times_are_stated(self) -> None:
        finding = saves_finding(None, {}, kill_wait=30, lead=180)
        assert (finding.state, finding.message) == (
            "ok",
            "a job at its time limit has 210 s; no save was measured in the last 30 days",
        )
