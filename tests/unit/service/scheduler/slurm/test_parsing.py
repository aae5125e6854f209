"""Slurm's words and what they mean: states, reasons, and sbatch's answers."""

from datetime import UTC, datetime

import pytest

from service.jobs.states import SUSPENDED
from service.scheduler.base import Accepted, Ambiguous, Postponed, Rejected
from service.scheduler.slurm.reasons import explain
from service.scheduler.slurm.sbatch_output import read_answer, read_forecast
from service.scheduler.slurm.states import KNOWN, meaning, suspended, word

DOCUMENTED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING"),
    *("PREEMPTED", "RUNNING", "SUSPENDED", "TIMEOUT", "COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED"),
    *("POWER_UP_NODE", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD"),
    *("REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "UPDATE_DB"),
}
"""Job states and flags, as Slurm's page of job state codes lists them."""


class TestStates:
    def test_every_documented_state_is_known(self) -> None:
        assert DOCUMENTED == KNOWN

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("PENDING", ("pending", None)),
            ("REQUEUE_HOLD", ("pending", None)),
            ("CONFIGURING", ("pending", None)),
            ("RUNNING", ("running", None)),
            ("SUSPENDED", ("running", None)),
            ("COMPLETING", ("running", None)),
            ("COMPLETED", ("ended", "completed")),
            ("CANCELLED by 1000", ("ended", "cancelled")),
            ("CANCELLED+", ("ended", "cancelled")),
            ("NODE_FAIL", ("ended", "node_failure")),
            ("PREEMPTED", ("ended", "preempted")),
            ("TIMEOUT", ("ended", "time_limit")),
            ("OUT_OF_ME+", ("running", None)),
            ("FLABBERGASTED", ("running", None)),
            ("", ("running", None)),
        ],
    )
    def test_means(self, text: str, expected: tuple[str, str | None]) -> None:
        assert meaning(text) == expected

    def test_a_job_that_has_its_nodes_and_does_not_run_says_what_brings_it_back(self) -> None:
        assert "`scontrol resume 7`" in suspended("SUSPENDED", "7")
        assert suspended("SUSPENDED", "7").startswith(SUSPENDED)
        assert suspended("STOPPED", "7").startswith(SUSPENDED)
        assert suspended("RUNNING", "7") == ""

    def test_a_word_is_the_first_one_without_its_mark(self) -> None:
        assert [word(text) for text in ("cancelled by 0", "RUNNING+", " FAILED ", "")] == [
            "CANCELLED",
            "RUNNING",
            "FAILED",
            "",
        ]


class TestReasons:
    @pytest.mark.parametrize(
        ("reason", "part"),
        [
            ("None", "has given no reason yet"),
            ("", "has given no reason yet"),
            ("SchedDefer", "plans in rounds"),
            ("Resources", "until enough nodes are free"),
            ("Priority", "higher priority"),
            ("Dependency", "waits for another job"),
            ("DependencyNeverSatisfied", "cancel it and submit it anew"),
            ("(JobHeldAdmin)", "administrator, who alone can release it"),
            ("JobHeldUser", "`scontrol release`"),
            ("JobHoldMaxRequeue", "too many restarts"),
            ("BeginTime", "begin time is still to come"),
            ("DeadLine", "before its deadline"),
            ("Reservation", "waits for its reservation"),
            ("ReservationDeleted", "reservation was deleted"),
            ("ReservationMaxFlex", "cannot be used as it stands"),
            ("Licenses", "licence"),
            ("PartitionTimeLimit", "lower resources.time_limit_minutes"),
            ("PartitionNodeLimit", "lower gpus"),
            ("PartitionConfig", "more than the partition can ever give"),
            ("PartitionDown", "the partition is closed"),
            ("PartitionInactive", "takes no jobs"),
            ("BadConstraints", "no node can ever satisfy"),
            ("ReqNodeNotAvail, UnavailableNodes:node1", "down or reserved"),
            ("ReqNodeNotAvail, May be reserved for other job", "`scontrol show reservation`"),
            ("NodeDown", "is down"),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                "are down, drained or kept for jobs of higher priority",
            ),
            ("TimeLimit", "used up its time limit"),
            ("AccountNotAllowed", "change resources.account"),
            ("AccountingPolicy", "limit of the account"),
            ("InvalidAccount", "change resources.account"),
            ("AssocGrpGRES", "limit of the account"),
            ("AssocGrpCpuLimit", "limit of the account"),
            ("AssocMaxJobsLimit", "limit of the account"),
            ("AssocMaxNodePerJobLimit", "never starts"),
            ("MaxJobsPerAccount", "limit of the account"),
            ("InvalidQOS", "change resources.qos"),
            ("QOSNotAllowed", "change resources.qos"),
            ("QOSJobLimit", "as many jobs at once as it may"),
            ("QOSMaxGRESPerUser", "limit of its qos"),
            ("QOSGrpGRES", "limit of its qos"),
            ("QOSMaxJobsPerUserLimit", "limit of its qos"),
            ("QOSMaxCpuPerJobLimit", "never starts"),
            ("QOSMaxWallDurationPerJobLimit", "never starts"),
            ("QOSMinGRES", "asks for less than its qos demands"),
            ("QOSTimeLimit", "more time than its qos allows"),
            ("QOSUsageThreshold", "larger share"),
            ("JobArrayTaskLimit", "run at once"),
            ("MaxMemPerLimit", "lower resources.memory_gb_per_gpu"),
            ("InactiveLimit", "idle"),
            ("Cleaning", "cleaned up"),
            ("Prolog", "being prepared"),
            ("BurstBufferResources", "burst-buffer space"),
            ("BurstBufferStageIn", "copied to the burst buffer"),
            ("BurstBufferOperation", "operation failed"),
            ("BurstBufferSomethingNew", "its burst buffer"),
            ("FrontEndDown", "front-end"),
            ("FedJobLock", "federation"),
            ("JobLaunchFailure", "could not be started"),
            ("NonZeroExitCode", "ended with an error"),
            ("RaisedSignal", "ended by a signal"),
            ("OutOfMemory", "out of memory"),
            ("SystemFailure", "ask an administrator"),
            ("SomethingNew", "Slurm gives this reason (SomethingNew)"),
        ],
    )
    def test_is_plain_and_keeps_slurms_words(self, reason: str, part: str) -> None:
        assert part in explain(reason)
        assert explain(reason).endswith(f"({reason.strip('()') or 'None'})")


class TestAnswers:
    def test_an_id_counts_whatever_else_was_said(self) -> None:
        assert read_answer(0, "Submitted batch job 7\n", "") == Accepted("7")
        assert read_answer(1, "Submitted batch job 7\n", "sbatch: error: Socket timed out") == Accepted("7")
        assert read_answer(0, "Submitted batch job 7 on cluster big\n", "") == Accepted("7")

    @pytest.mark.parametrize(
        "words",
        [
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "Batch job submission failed: Invalid partition name specified",
            "Batch job submission failed: Requested node configuration is not available",
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)",
            "Invalid generic resource (gres) specification",
        ],
    )
    def test_a_clear_refusal_keeps_slurms_words(self, words: str) -> None:
        outcome = read_answer(1, "", f"sbatch: error: {words}\n")
        assert isinstance(outcome, Rejected)
        assert outcome.message.startswith(f"Slurm refuses it: {words} (")

    def test_a_refusal_names_the_field_to_change(self) -> None:
        outcome = read_answer(1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n")
        assert isinstance(outcome, Rejected)
        assert "(change resources.qos; " in outcome.message
        assert outcome.hint.startswith("Change resources.qos; ")

    @pytest.mark.parametrize(
        ("words", "field"),
        [
            ("Batch job submission failed: Invalid node name specified", "exclude"),
            ("Batch job submission failed: Invalid feature specification", "constraint"),
            ("Batch job submission failed: Invalid account or account/partition combination specified", "account"),
            (
                "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
                "time_limit",
            ),
            (
                "invalid partition specified: x\nBatch job submission failed: Invalid partition name specified",
                "partition",
            ),
            ("Batch job submission failed: Job constraint cannot be met: Invalid job constraint", "constraint"),
        ],
    )
    def test_every_word_about_a_field_of_the_spec_has_a_hint(self, words: str, field: str) -> None:
        outcome = read_answer(1, "", f"sbatch: error: {words}\n")
        assert isinstance(outcome, Rejected)
        assert f"resources.{field}" in outcome.hint

    @pytest.mark.parametrize(
        ("code", "stdout", "stderr"),
        [
            (1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"),
            (1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller"),
            (0, "", ""),
            (0, "Welcome to the cluster", ""),
            (-9, "", ""),
            (0, "", "sbatch: error: Invalid partition name specified"),
        ],
    )
    def test_anything_else_is_looked_into(self, code: int, stdout: str, stderr: str) -> None:
        assert isinstance(read_answer(code, stdout, stderr), Ambiguous)

    @pytest.mark.parametrize(
        "limit", ["AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "QOSMaxSubmitJobPerUserLimit"]
    )
    def test_a_limit_of_queued_jobs_passes(self, limit: str) -> None:
        policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
        words = f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: {policy}\n"
        outcome = read_answer(1, "", words)
        assert isinstance(outcome, Postponed)
        assert limit in outcome.message
        assert read_forecast(1, words).accepted is None


class TestForecasts:
    """What `sbatch --test-only` says on standard error."""

    def test_where_and_when_it_would_start(self) -> None:
        words = "sbatch: Job 7 to start at 2026-01-01T12:30:00 using 4 processors on nodes node[1-2] in partition gpu\n"
        found = read_forecast(0, words)
        assert (found.accepted, found.estimated_start) == (True, datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
        assert found.message == (
            "Slurm would accept it, and start it on node[1-2], partition gpu at 2026-01-01 12:30:00Z"
        )

    def test_older_releases_say_less(self) -> None:
        found = read_forecast(0, "sbatch: Job 7 to start at 2026-01-01T12:30:00 using 1 processors on node1\n")
        assert found.message == "Slurm would accept it, and start it on node1 at 2026-01-01 12:30:00Z"

    def test_a_start_that_is_not_known(self) -> None:
        found = read_forecast(0, "sbatch: Job 7 to start at Unknown using 1 processors on nodes node1\n")
        assert (found.accepted, found.estimated_start) == (True, None)

    def test_a_refusal_comes_with_the_way_out(self) -> None:
        found = read_forecast(
            1, "sbatch: error: invalid partition specified: x\nallocation failure: Invalid qos for job\n"
        )
        assert found.accepted is False
        assert found.message.startswith("Slurm refuses it: invalid partition specified: x; allocation failure: Invalid")
        assert "change resources.qos" in found.message

    def test_nodes_that_are_down_are_no_refusal(self) -> None:
        """Seen on 22.05: with every node drained a real submission is taken and waits, and this is said of it."""
        found = read_forecast(1, "allocation failure: Requested node configuration is not available\n")
        assert (found.accepted, found.estimated_start) == (None, None)
        assert found.message.startswith("Slurm finds no nodes for it among those that are up: allocation failure")
        assert "a job would wait for them; else change gpus" in found.message

    def test_other_words_are_told_as_they_are(self) -> None:
        found = read_forecast(1, "sbatch: error: Batch job submission failed: Zero Bytes were transmitted\n")
        assert (found.accepted, found.estimated_start) == (None, None)
        assert found.message == "sbatch ended with 1: Batch job submission failed: Zero Bytes were transmitted"
        assert read_forecast(0, "").accepted is None
