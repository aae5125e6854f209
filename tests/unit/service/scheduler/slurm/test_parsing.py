"""Parsing of Slurm's states, reasons and sbatch output."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.scheduler.base import Accepted, Ambiguous, Postponed, Rejected
from service.scheduler.slurm.reasons import explain
from service.scheduler.slurm.sbatch_output import parse_forecast, parse_sbatch_output
from service.scheduler.slurm.states import (
    BY_CONTROLLER,
    describe_completing,
    describe_suspended,
    interpret_state,
    state_name,
)
from service.scheduler.slurm.states import DOCUMENTED as KNOWN

DOCUMENTED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING"),
    *("PREEMPTED", "RUNNING", "SUSPENDED", "TIMEOUT", "COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED"),
    *("POWER_UP_NODE", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD"),
    *("REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "UPDATE_DB"),
}
"""Job states and flags, as Slurm's page of job state codes lists them."""

CONTROLLER_ERRORS = Path(__file__).with_name("controller_errors.txt")


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
            (BY_CONTROLLER, ("ended", "dropped")),
            ("NODE_FAIL", ("ended", "node_failure")),
            ("PREEMPTED", ("ended", "preempted")),
            ("TIMEOUT", ("ended", "time_limit")),
            ("OUT_OF_ME+", ("running", None)),
            ("FLABBERGASTED", ("running", None)),
            ("", ("running", None)),
        ],
    )
    def test_interpret_state(self, text: str, expected: tuple[str, str | None]) -> None:
        assert interpret_state(text) == expected

    def test_a_suspended_job_reports_how_to_resume_it(self) -> None:
        assert "`scontrol resume 7`" in describe_suspended("SUSPENDED", "7")
        assert describe_suspended("SUSPENDED", "7").startswith("Suspended in Slurm")
        assert describe_suspended("STOPPED", "7").startswith("Suspended in Slurm")
        assert describe_suspended("RUNNING", "7") == ""

    def test_a_completing_job_is_described(self) -> None:
        assert "Slurm is cleaning up" in describe_completing("COMPLETING", "7")
        assert describe_completing("RUNNING", "7") == ""

    def test_state_name_omits_details_and_marks(self) -> None:
        assert [state_name(text) for text in ("cancelled by 0", "RUNNING+", " FAILED ", "")] == [
            "CANCELLED",
            "RUNNING",
            "FAILED",
            "",
        ]


class TestReasons:
    @pytest.mark.parametrize(
        ("reason", "part"),
        [
            ("None", "has not reported a reason"),
            ("", "has not reported a reason"),
            ("SchedDefer", "has not scheduled it yet"),
            ("Resources", "when enough nodes are free"),
            ("Priority", "higher priority"),
            ("Dependency", "depends on another job"),
            ("DependencyNeverSatisfied", "Cancel the job and submit it again."),
            ("(JobHeldAdmin)", "Only an administrator can release it."),
            ("JobHeldUser", "`scontrol release`"),
            ("JobHoldMaxRequeue", "too many requeues"),
            ("BeginTime", "begin time is in the future"),
            ("DeadLine", "before its deadline"),
            ("Reservation", "its reservation has not started"),
            ("ReservationDeleted", "reservation was deleted"),
            ("ReservationMaxFlex", "reservation cannot be used"),
            ("Licenses", "license"),
            ("PartitionTimeLimit", "Lower resources.time_limit_minutes"),
            ("PartitionNodeLimit", "Lower gpus"),
            ("PartitionConfig", "exceeds what the partition can provide"),
            ("PartitionDown", "the partition is down"),
            ("PartitionInactive", "does not start jobs"),
            ("BadConstraints", "no node can satisfy"),
            ("ReqNodeNotAvail, UnavailableNodes:node1", "down or reserved"),
            ("ReqNodeNotAvail, UnavailableNodes:node1", "`trainyard resume JOB --set resources.partition=NAME`"),
            ("ReqNodeNotAvail, May be reserved for other job", "`scontrol show reservation`"),
            ("NodeDown", "is down"),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                "are down, drained or reserved for jobs with higher priority",
            ),
            ("TimeLimit", "time limit is used up"),
            ("AccountNotAllowed", "Change resources.account"),
            ("AccountingPolicy", "limit of the account"),
            ("InvalidAccount", "Change resources.account"),
            ("AssocGrpGRES", "limit of the account"),
            ("AssocGrpCpuLimit", "limit of the account"),
            ("AssocMaxJobsLimit", "limit of the account"),
            ("AssocMaxNodePerJobLimit", "cannot start as it is"),
            ("MaxJobsPerAccount", "limit of the account"),
            ("InvalidQOS", "Change resources.qos"),
            ("QOSNotAllowed", "Change resources.qos"),
            ("QOSJobLimit", "maximum number of jobs"),
            ("QOSMaxGRESPerUser", "limit of the QOS"),
            ("QOSGrpGRES", "limit of the QOS"),
            ("QOSMaxJobsPerUserLimit", "limit of the QOS"),
            ("QOSMaxCpuPerJobLimit", "cannot start as it is"),
            ("QOSMaxWallDurationPerJobLimit", "cannot start as it is"),
            ("QOSMinGRES", "below the minimum of the QOS"),
            ("QOSTimeLimit", "limit of the QOS"),
            ("QOSUsageThreshold", "larger remaining share"),
            ("JobArrayTaskLimit", "run at once"),
            ("MaxMemPerLimit", "Lower resources.memory_gb_per_gpu"),
            ("InactiveLimit", "inactive"),
            ("Cleaning", "cleaning up"),
            ("Prolog", "being prepared"),
            ("BurstBufferResources", "burst-buffer space"),
            ("BurstBufferStageIn", "copied to the burst buffer"),
            ("BurstBufferOperation", "operation failed"),
            ("BurstBufferSomethingNew", "its burst buffer"),
            ("FrontEndDown", "front-end"),
            ("FedJobLock", "federation"),
            ("JobLaunchFailure", "the start failed"),
            ("NonZeroExitCode", "ended with an error"),
            ("RaisedSignal", "ended by a signal"),
            ("(job requeued in held state)", "`scontrol release` releases it"),
            ("OutOfMemory", "out of memory"),
            ("SystemFailure", "Ask an administrator"),
            ("SomethingNew", "Slurm's reason (SomethingNew)"),
        ],
    )
    def test_reasons_are_explained_and_quoted(self, reason: str, part: str) -> None:
        assert part in explain(reason)
        assert f" ({reason.strip('()') or 'None'})." in explain(reason)
        assert explain(reason).endswith(".")


class TestSbatchOutput:
    def test_a_job_id_counts_whatever_the_exit_status(self) -> None:
        assert parse_sbatch_output(0, "Submitted batch job 7\n", "") == Accepted("7")
        assert parse_sbatch_output(1, "Submitted batch job 7\n", "sbatch: error: Socket timed out") == Accepted("7")
        assert parse_sbatch_output(0, "Submitted batch job 7 on cluster big\n", "") == Accepted("7")

    def test_other_lines_of_a_site_name_no_job(self) -> None:
        printed = "Your job 99 of 100 this month\nSubmitted batch job 7\nSee job 5\n"
        assert parse_sbatch_output(0, printed, "") == Accepted("7")
        assert isinstance(parse_sbatch_output(0, "Your job 99 of 100 this month\n", ""), Ambiguous)

    def test_a_filter_of_the_site_refuses_with_its_message(self) -> None:
        text = "sbatch: lua: at most 4 GPUs\nsbatch: error: cli_filter plugin terminated with error\n"
        outcome = parse_sbatch_output(1, "", text)
        assert isinstance(outcome, Rejected)
        assert "at most 4 GPUs" in outcome.message

    def test_long_answers_are_shortened_to_their_end(self) -> None:
        outcome = parse_sbatch_output(1, "", "sbatch: lua: " + "x" * 10_000 + "\nsbatch: error: Unspecified error\n")
        assert len(outcome.message) < 1500
        assert "Unspecified error" in outcome.message

    @pytest.mark.parametrize(
        "output",
        [
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "Batch job submission failed: Invalid partition name specified",
            "Batch job submission failed: Requested node configuration is not available",
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)",
            "Invalid generic resource (gres) specification",
        ],
    )
    def test_a_refusal_quotes_slurm(self, output: str) -> None:
        outcome = parse_sbatch_output(1, "", f"sbatch: error: {output}\n")
        assert isinstance(outcome, Rejected)
        assert outcome.message.startswith(f"Slurm refused the job: {output}. ")

    def test_a_refusal_names_the_field_to_change(self) -> None:
        outcome = parse_sbatch_output(1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n")
        assert isinstance(outcome, Rejected)
        assert "Change resources.qos; " in outcome.message
        assert outcome.hint.startswith("Change resources.qos; ")

    @pytest.mark.parametrize(
        ("output", "field"),
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
            ("Batch job submission failed: Invalid node name specified", "options.nodelist"),
            ("Batch job submission failed: Requested reservation is invalid", "options.reservation"),
            ("Batch job submission failed: Access denied to requested reservation", "options.reservation"),
            ("Batch job submission failed: Invalid license specification", "options.licenses"),
            ("Batch job submission failed: Invalid preferred feature specification", "options.prefer"),
            ("Batch job submission failed: Invalid wckey specification", "options.wckey"),
            ("Invalid generic resource (gres) specification", "options.gres"),
            ("invalid number of nodes (-N 3-2)", "options.nodelist"),
            ("Invalid --exclusive specification", "options"),
            ('Invalid numeric value "x" for --switches.', "options"),
            ('unrecognized --hint argument "foo", see --hint=help', "options"),
            ("Invalid --gpu-freq argument: gpu:foo", "options"),
        ],
    )
    def test_every_refusal_about_a_spec_field_has_a_hint(self, output: str, field: str) -> None:
        outcome = parse_sbatch_output(1, "", f"sbatch: error: {output}\n")
        assert isinstance(outcome, Rejected)
        assert f"resources.{field}" in outcome.hint

    @pytest.mark.parametrize("problem", ["unrecognized option '--prefer=x'", "option '--prefer' requires an argument"])
    def test_an_option_that_this_sbatch_lacks_is_a_refusal(self, problem: str) -> None:
        outcome = parse_sbatch_output(255, "", f'sbatch: {problem}\nTry "sbatch --help" for more information\n')
        assert isinstance(outcome, Rejected)
        assert "Change resources.options" in outcome.hint

    def test_every_error_of_the_controller_is_an_answer(self) -> None:
        """The messages of the controller, as `slurm_strerror` gives them, and messages of releases to come."""
        numbers: dict[type, set[int]] = {}
        for line in CONTROLLER_ERRORS.read_text().splitlines()[1:]:
            number, text = line.split(" ", 1)
            outcome = parse_sbatch_output(1, "", f"sbatch: error: Batch job submission failed: {text}\n")
            assert text in str(outcome)
            numbers.setdefault(type(outcome), set()).add(int(number))
        communication = {*range(1000, 1009), 1012, 1013, *range(1800, 1804), *range(5000, 5006), 6005, 6007}
        assert numbers[Ambiguous] == communication | {6000, 6001, 6002, 6006, 6008}
        for_now = {2007, 2010, 2016, 2027, 2056, 2061, 2068, 2070, 2074, 2090, 2101, 2105, 2118, 2125, 2131}
        assert for_now <= numbers[Postponed]
        assert {-1, 2000, 2003, 2014, 2045, 2050, 2051, 2066, 2072} <= numbers[Rejected]
        assert isinstance(parse_sbatch_output(1, "", "Batch job submission failed: Moon not full\n"), Postponed)

    def test_a_refusal_by_a_policy_of_the_site_quotes_it(self) -> None:
        text = "Use partition debug for jobs of less than an hour"
        output = f"sbatch: error: {text}\nsbatch: error: Batch job submission failed: Unspecified error\n"
        outcome = parse_sbatch_output(1, "", output)
        assert isinstance(outcome, Rejected)
        assert text in outcome.message
        assert "policy of the site" in outcome.hint

    def test_a_lost_answer_is_none_whatever_else_is_printed(self) -> None:
        output = (
            "sbatch: error: Access/permission denied\nsbatch: error: Batch job submission failed: Socket timed out\n"
        )
        assert isinstance(parse_sbatch_output(1, "", output), Ambiguous)

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
    def test_any_other_output_is_ambiguous(self, code: int, stdout: str, stderr: str) -> None:
        assert isinstance(parse_sbatch_output(code, stdout, stderr), Ambiguous)

    @pytest.mark.parametrize(
        "limit", ["AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "QOSMaxSubmitJobPerUserLimit"]
    )
    def test_a_limit_of_queued_jobs_postpones(self, limit: str) -> None:
        policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
        output = f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: {policy}\n"
        outcome = parse_sbatch_output(1, "", output)
        assert isinstance(outcome, Postponed)
        assert limit in outcome.message
        assert parse_forecast(1, output).accepted is None


class TestForecasts:
    """The error output of `sbatch --test-only`."""

    def test_estimate_with_nodes_and_partition(self) -> None:
        output = (
            "sbatch: Job 7 to start at 2026-01-01T12:30:00 using 4 processors on nodes node[1-2] in partition gpu\n"
        )
        forecast = parse_forecast(0, output)
        assert (forecast.accepted, forecast.estimated_start) == (True, datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
        assert forecast.message == (
            "Slurm would accept the job and estimates a start at 2026-01-01 12:30:00 UTC on node[1-2] in partition gpu."
        )

    def test_estimate_of_older_releases(self) -> None:
        forecast = parse_forecast(0, "sbatch: Job 7 to start at 2026-01-01T12:30:00 using 1 processors on node1\n")
        assert (
            forecast.message == "Slurm would accept the job and estimates a start at 2026-01-01 12:30:00 UTC on node1."
        )

    def test_unknown_start_time(self) -> None:
        forecast = parse_forecast(0, "sbatch: Job 7 to start at Unknown using 1 processors on nodes node1\n")
        assert (forecast.accepted, forecast.estimated_start) == (True, None)

    def test_a_refusal_includes_the_remedy(self) -> None:
        forecast = parse_forecast(
            1, "sbatch: error: invalid partition specified: x\nallocation failure: Invalid qos for job\n"
        )
        assert forecast.accepted is False
        assert forecast.message.startswith(
            "Slurm refused the job: invalid partition specified: x; allocation failure: Invalid"
        )
        assert "Change resources.qos" in forecast.message

    def test_nodes_that_are_down_are_no_refusal(self) -> None:
        """Slurm 22.05 prints this if every node is drained, although a real submission is accepted and waits."""
        forecast = parse_forecast(1, "allocation failure: Requested node configuration is not available\n")
        assert (forecast.accepted, forecast.estimated_start) == (None, None)
        assert forecast.message.startswith("Slurm finds no suitable nodes among those that are up: allocation failure")
        assert "a job waits for them; otherwise change gpus" in forecast.message

    def test_other_output_is_quoted(self) -> None:
        forecast = parse_forecast(1, "sbatch: error: Batch job submission failed: Zero Bytes were transmitted\n")
        assert (forecast.accepted, forecast.estimated_start) == (None, None)
        assert forecast.message == "sbatch exited with 1: Batch job submission failed: Zero Bytes were transmitted"
        assert parse_forecast(0, "").accepted is None
