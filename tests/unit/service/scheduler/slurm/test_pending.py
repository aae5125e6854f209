"""Status messages of pending jobs: reason, position and start estimate."""

from datetime import UTC, datetime, timedelta

import pytest

from service.scheduler.slurm.commands import Row, parse_queue
from service.scheduler.slurm.pending import count_ahead, describe_pending, needs_other_jobs, rounded_start

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def row(number: int, reason: str = "Priority", priority: int = 100, **changes: object) -> Row:
    values = {"id": str(number), "name": f"ty-{number}", "state": "PENDING", "detail": reason, "nodes": ""}
    return Row(**{**values, "partition": "gpu", "priority": priority, **changes})  # type: ignore[arg-type]


class TestCountAhead:
    def test_all_jobs_with_higher_priority_count(self) -> None:
        mine = [row(5), row(6, priority=300), row(7, priority=50)]
        assert count_ahead(mine, [row(1, "Resources", 200)]) == {"5": 2, "6": 0, "7": 3}

    def test_of_equal_priority_the_older_job_is_first(self) -> None:
        assert count_ahead([row(5)], [row(4, "Resources"), row(6)]) == {"5": 1}

    @pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "Dependency", "BeginTime"])
    def test_held_and_dependent_jobs_are_not_ahead(self, reason: str) -> None:
        assert count_ahead([row(5)], [row(1, reason, 900)]) == {"5": 0}

    def test_other_partitions_and_running_jobs_do_not_count(self) -> None:
        others = [row(1, priority=900, partition="cpu"), row(2, priority=900, state="RUNNING")]
        assert count_ahead([row(5)], others) == {"5": 0}

    def test_a_job_in_several_partitions_counts_in_each(self) -> None:
        assert count_ahead([row(5)], [row(1, priority=900, partition="cpu,gpu")]) == {"5": 1}

    def test_other_jobs_are_needed_only_to_count_jobs_ahead(self) -> None:
        assert needs_other_jobs([row(1)])
        assert not needs_other_jobs([row(1, "Resources"), row(2, state="RUNNING")])


class TestDescribePending:
    def test_complete_message(self) -> None:
        observation = describe_pending(row(5, start=NOW + timedelta(minutes=12)), {"5": 3}, NOW)
        assert observation.message == (
            "Waiting in Slurm: jobs with higher priority start first (Priority). 3 jobs ahead in partition gpu. "
            "Slurm estimates the start by 2026-01-01 12:15 UTC."
        )
        assert observation.estimated_start == NOW + timedelta(minutes=15)

    def test_message_without_position_and_estimate(self) -> None:
        observation = describe_pending(row(5, "JobHeldAdmin"), {}, NOW)
        assert observation.message == (
            "Waiting in Slurm: held by an administrator (JobHeldAdmin). Only an administrator can release it."
        )
        assert observation.estimated_start is None

    @pytest.mark.parametrize(
        ("count", "part"),
        [
            (1, "1 job ahead"),
            (10, "10 jobs ahead"),
            (11, "More than 10 jobs ahead"),
            (99, "More than 90 jobs ahead"),
            (101, "More than 100 jobs ahead"),
            (4321, "More than 4000 jobs ahead"),
        ],
    )
    def test_large_counts_are_rounded(self, count: int, part: str) -> None:
        assert f". {part}" in describe_pending(row(5), {"5": count}, NOW).message


class TestStart:
    @pytest.mark.parametrize(
        ("minutes", "rounded"),
        [(1, 5), (5, 5), (59, 60), (61, 75), (359, 360), (361, 420), (1440, 1440), (1441, 1440 + 360)],
    )
    def test_estimates_are_rounded_up_in_growing_units(self, minutes: int, rounded: int) -> None:
        assert rounded_start(NOW + timedelta(minutes=minutes), NOW) == NOW + timedelta(minutes=rounded)

    def test_a_past_time_is_no_estimate(self) -> None:
        assert rounded_start(NOW, NOW) is None
        assert rounded_start(None, NOW) is None


class TestQueue:
    TIMES = "2026-01-01T12:15:00|2026-01-01T12:45:00"
    LINE = f"m1|5|PENDING|{TIMES}|gpu|4294901757|1000||Nodes required for job are DOWN, DRAINED|/runs/1|ty-a|b"

    def test_a_line(self) -> None:
        mine, others = parse_queue(self.LINE, "m1", 1000)
        assert mine == [
            Row(
                *("5", "ty-a|b", "PENDING", "Nodes required for job are DOWN, DRAINED", ""),
                *(
                    "gpu",
                    4294901757,
                    datetime(2026, 1, 1, 12, 15, tzinfo=UTC),
                    datetime(2026, 1, 1, 12, 45, tzinfo=UTC),
                    "/runs/1",
                    1000,
                ),
            )
        ]
        assert others == []

    def test_jobs_of_other_accounts_are_separate(self) -> None:
        mine, others = parse_queue(self.LINE, "m1", 1001)
        assert (mine, [other.id for other in others]) == ([], ["5"])

    def test_a_line_break_in_a_job_name_forges_no_line(self) -> None:
        forged = (
            "m1|9|RUNNING|N/A|N/A|gpu|1|1001|n1|None|/runs/1|x\nm2|5|COMPLETED|N/A|N/A|gpu|1|1000||None|/runs/1|ty-a"
        )
        assert [one.id for one in parse_queue(forged, "m1", 1000)[0]] == []

    def test_no_estimate_is_none(self) -> None:
        assert parse_queue(self.LINE.replace("2026-01-01T12:15:00", "N/A"), "m1", 1000)[0][0].start is None
