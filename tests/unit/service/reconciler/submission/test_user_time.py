"""Users take turns in a tick, and each has a limited time of it."""

import pytest

from service.reconciler.submission.user_time import UserTimeBudget


def first_letter(job: str) -> str:
    return job[0]


def test_first_jobs_of_all_users_come_first() -> None:
    jobs = ["a1", "a2", "a3", "b1", "c1", "b2"]
    assert UserTimeBudget().sort(jobs, first_letter) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_user_who_was_served_longest_ago_comes_first() -> None:
    turns = UserTimeBudget()
    for user in ("b", "a"):
        with turns.measure(user):
            pass
    assert turns.sort(["a1", "a2", "b1", "c1"], first_letter) == ["c1", "b1", "a1", "a2"]


def test_used_time_counts_for_its_user_until_the_next_tick() -> None:
    now = [0.0]
    turns = UserTimeBudget(2.0, lambda: now[0])
    with turns.measure("a"):
        now[0] += 1.9
    assert not turns.is_used_up("a")

    def fail() -> None:
        with turns.measure("a"):
            now[0] += 0.1
            raise ValueError("a failed check")

    with pytest.raises(ValueError, match="a failed check"):
        fail()
    assert (turns.is_used_up("a"), turns.is_used_up("b")) == (True, False)
    turns.start_tick()
    assert not turns.is_used_up("a")
