"""Whose turn it is."""

from service.jobs.quota import UserQuotas
from service.reconciler.quota import Share, held_back


def share(pk: int, gpus: int, *, user: str = "ada", role: str = "user", waiting: bool = True) -> Share:
    return Share(pk, f"job_{pk}", user, role, gpus, waiting)


def test_without_a_limit_nobody_waits() -> None:
    assert held_back([share(1, 100), share(2, 100, waiting=False)], UserQuotas()) == {}


def test_what_the_scheduler_has_counts_even_where_it_was_created_later() -> None:
    held = held_back([share(1, 4), share(2, 6, waiting=False)], UserQuotas(gpus=8))
    assert held == {1: "waits: jobs of ada have 6 of the 8 GPUs that one person's may; it needs 4"}


def test_jobs_go_in_order_up_to_the_limit() -> None:
    held = held_back([share(1, 4), share(2, 4), share(3, 4)], UserQuotas(gpus=8))
    assert list(held) == [3]


def test_a_small_job_does_not_overtake_a_large_one() -> None:
    held = held_back([share(1, 2, waiting=False), share(2, 8), share(3, 1)], UserQuotas(gpus=8))
    assert list(held) == [2, 3]
    assert held[3] == "waits behind job_2, which waits for GPUs of ada's share"


def test_a_line_that_moves_changes_the_words_of_few() -> None:
    """Each change is written to the job and to its history: thousands may stand in line."""
    line = [share(1, 1, waiting=False), *(share(pk, 1) for pk in range(2, 100))]
    before = held_back(line, UserQuotas(gpus=1))
    after = held_back([share(2, 1, waiting=False), *line[2:]], UserQuotas(gpus=1))
    assert len([pk for pk in after if after[pk] != before[pk]]) <= 2


def test_people_and_roles_have_shares_of_their_own() -> None:
    jobs = [share(1, 8, waiting=False), share(2, 8, user="bob"), share(3, 64, user="root", role="admin")]
    assert held_back(jobs, UserQuotas(gpus=8)) == {}
    assert list(held_back(jobs, UserQuotas(gpus=8, admin_gpus=32))) == [3]


def test_one_that_can_never_fit_says_so() -> None:
    held = held_back([share(1, 9)], UserQuotas(gpus=8))
    assert held[1] == "needs 9 GPUs, and the jobs of one person may have 8; it cannot start under this limit"
