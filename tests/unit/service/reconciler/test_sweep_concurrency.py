"""Which members of a sweep wait for their turn."""

from service.reconciler.quota import Share
from service.reconciler.sweep_concurrency import beyond_sweep


def member(
    pk: int, *, waiting: bool = True, gpus: int = 1, sweep: str | None = "swp_a", parallel: int | None = 2
) -> Share:
    return Share(pk, f"job_{pk}", "anna", "user", gpus, waiting, sweep, parallel)


def test_the_oldest_go_first_and_the_others_are_told_why() -> None:
    found = beyond_sweep([member(1), member(2), member(3), member(4)])
    assert set(found) == {3, 4}
    assert found[3] == "waits for its turn: sweep swp_a runs 2 jobs at once"


def test_what_the_scheduler_has_counts_wherever_it_stands_in_the_line() -> None:
    assert set(beyond_sweep([member(1), member(2, waiting=False), member(3)])) == {3}


def test_a_paused_member_leaves_its_place_to_another() -> None:
    assert beyond_sweep([member(1, waiting=False, gpus=0), member(2), member(3)]) == {}


def test_each_sweep_counts_for_itself_and_other_jobs_not_at_all() -> None:
    jobs = [member(1, parallel=1), member(2, sweep="swp_b", parallel=1), member(3, sweep=None, parallel=None)]
    assert beyond_sweep(jobs) == {}


def test_without_a_number_all_go_at_once() -> None:
    assert beyond_sweep([member(n, parallel=None) for n in range(9)]) == {}
