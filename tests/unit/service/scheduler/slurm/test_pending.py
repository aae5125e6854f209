"""What is said of a job that waits: why, behind how many, and until when."""

from datetime import UTC, datetime, timedelta

import pytest

from service.scheduler.slurm.commands import Row, read_queue
from service.scheduler.slurm.pending import count_ahead, rounded_start, waiting, waits_behind_others

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def row(number: int, reason: str = "Priority", priority: int = 100, **changes: object) -> Row:
    values = {"id": str(number), "name": f"ty-{number}", "state": "PENDING", "detail": reason, "nodes": ""}
    return Row(**{**values, "partition": "gpu", "priority": priority, **changes})  # type: ignore[arg-type]


class TestAhead:
    def test_jobs_of_others_and_of_ours_with_a_higher_priority_count(self) -> None:
        mine = [row(5), row(6, priority=300), row(7, priority=50)]
        assert count_ahead(mine, [row(1, "Resources", 200)]) == {"5": 2, "6": 0, "7": 3}

    def test_of_equals_the_older_is_first(self) -> None:
        assert count_ahead([row(5)], [row(4, "Resources"), row(6)]) == {"5": 1}

    @pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "Dependency", "BeginTime"])
    def test_a_job_that_stands_by_is_before_nobody(self, reason: str) -> None:
        assert count_ahead([row(5)], [row(1, reason, 900)]) == {"5": 0}

    def test_other_partitions_and_running_jobs_do_not_count(self) -> None:
        others = [row(1, priority=900, partition="cpu"), row(2, priority=900, state="RUNNING")]
        assert count_ahead([row(5)], others) == {"5": 0}

    def test_one_that_may_run_in_several_partitions_counts_in_each(self) -> None:
        assert count_ahead([row(5)], [row(1, priority=900, partition="cpu,gpu")]) == {"5": 1}

    def test_others_matter_only_while_one_of_ours_waits_behind_them(self) -> None:
        assert waits_behind_others([row(1)])
        assert not waits_behind_others([row(1, "Resources"), row(2, state="RUNNING")])


class TestWords:
    def test_all_that_is_known(self) -> None:
        seen = waiting(row(5, estimated_start=NOW + timedelta(minutes=12)), {"5": 3}, NOW)
        assert seen.message == (
            "waiting for Slurm: jobs of higher priority come first (Priority); 3 jobs are before it in partition gpu; "
            "Slurm expects it to start by 2026-01-01 12:15 UTC"
        )
        assert seen.estimated_start == NOW + timedelta(minutes=15)

    def test_nothing_more_than_is_known(self) -> None:
        seen = waiting(row(5, "JobHeldAdmin"), {}, NOW)
        assert seen.message == "waiting for Slurm: held by an administrator, who alone can release it (JobHeldAdmin)"
        assert seen.estimated_start is None

    @pytest.mark.parametrize(
        ("count", "words"),
        [
            (1, "1 job is"),
            (10, "10 jobs are"),
            (11, "more than 10"),
            (99, "more than 90"),
            (101, "more than 100"),
            (4321, "more than 4000"),
        ],
    )
    def test_a_long_queue_is_told_roughly(self, count: int, words: str) -> None:
        assert f"; {words}" in waiting(row(5), {"5": count}, NOW).message


class TestStart:
    @pytest.mark.parametrize(
        ("minutes", "rounded"),
        [(1, 5), (5, 5), (59, 60), (61, 75), (359, 360), (361, 420), (1440, 1440), (1441, 1440 + 360)],
    )
    def test_is_rounded_up_the_more_the_farther_it_is(self, minutes: int, rounded: int) -> None:
        assert rounded_start(NOW + timedelta(minutes=minutes), NOW) == NOW + timedelta(minutes=rounded)

    def test_a_time_that_has_passed_is_no_estimate(self) -> None:
        assert rounded_start(NOW, NOW) is None
        assert rounded_start(None, NOW) is None


class TestQueue:
    LINE = "m1|5|PENDING|2026-01-01T12:15:00|gpu|4294901757|1000||Nodes required for job are DOWN, DRAINED|ty-a|b"

    def test_a_line(self) -> None:
        mine, others = read_queue(self.LINE, "m1", 1000)
        assert mine == [
            Row(
                *("5", "ty-a|b", "PENDING", "Nodes required for job are DOWN, DRAINED", ""),
                *("gpu", 4294901757, datetime(2026, 1, 1, 12, 15, tzinfo=UTC)),
            )
        ]
        assert others == []

    def test_the_job_of_another_account_is_never_ours(self) -> None:
        mine, others = read_queue(self.LINE, "m1", 1001)
        assert (mine, [other.id for other in others]) == ([], ["5"])

    def test_a_line_break_in_a_strangers_job_name_makes_no_line(self) -> None:
        forged = "m1|9|RUNNING|N/A|gpu|1|1001|n1|None|x\nm2|5|COMPLETED|N/A|gpu|1|1000||None|ty-a"
        assert [one.id for one in read_queue(forged, "m1", 1000)[0]] == []

    def test_no_estimate_is_none(self) -> None:
        assert read_queue(self.LINE.replace("2026-01-01T12:15:00", "N/A"), "m1", 1000)[0][0].estimated_start is None
