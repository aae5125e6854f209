"""Slurm's words and what they mean: states, reasons, and sbatch's answers."""

import pytest

from service.scheduler.base import Accepted, Ambiguous, Rejected
from service.scheduler.slurm_answer import read_answer
from service.scheduler.slurm_reasons import explain
from service.scheduler.slurm_states import KNOWN, meaning, word

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
            ("Resources", "until enough nodes are free"),
            ("Priority", "higher priority"),
            ("(JobHeldAdmin)", "administrator"),
            ("ReqNodeNotAvail, UnavailableNodes:node1", "down or reserved"),
            ("QOSMaxGRESPerUser", "limit of its qos"),
            ("AssocGrpGRES", "limit of the account"),
            ("QOSMaxCpuPerJobLimit", "never starts"),
            ("SomethingNew", "Slurm gives this reason (SomethingNew)"),
            ("", "has not looked at it yet (None)"),
        ],
    )
    def test_is_plain_and_keeps_slurms_word(self, reason: str, part: str) -> None:
        assert part in explain(reason)
        assert (reason.split(",")[0].strip("()") or "None") in explain(reason)


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
        assert outcome == Rejected(f"Slurm refuses it: {words}")

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
