"""The decisions of a search: promotion, stopping, limits and the end."""

from dataclasses import replace
from typing import Any

import pytest

from service.plugins.sweeps.search.decide import MAX_REJECTED, Trial, next_moves
from service.plugins.sweeps.search.plan import SearchPlan, rung_steps
from trainyard.contract.wire.search import Search


def plan(algorithm: str = "asha", trials: int = 9, parallel: int = 3, **options: Any) -> SearchPlan:
    search = Search.model_validate(
        {"algorithm": algorithm, "space": {"lr": "log:1:10"}, "max_trials": trials, **options}
    )
    rungs = (1, 3, 9) if algorithm in ("asha", "hyperband") else ()
    return SearchPlan(search=search, metric="eval/loss", mode="min", max_parallel=parallel, rung_steps=rungs)


def paused(number: int, value: float | None, rung: int = 1, **changes: Any) -> Trial:
    results = {step: value for step in (1, 3, 9) if step <= rung}
    trial = Trial(number, {}, status="paused", desired="paused", pause_at=rung, step=rung, value=value, results=results)
    return replace(trial, **changes)


RUNNING = Trial(50, {}, status="running")


def test_a_value_is_recorded_when_its_trial_has_paused_at_the_rung() -> None:
    moves = next_moves(plan(), [paused(0, 0.5, results={}), replace(RUNNING, number=1)], 0)
    assert moves.record == {0: 1}
    assert (moves.promote, moves.proposals) == ({}, 2)


def test_a_trial_before_its_rung_is_not_at_it() -> None:
    assert next_moves(plan(), [paused(0, 0.5, step=0, results={})], 0).record == {}


def test_the_best_third_of_a_rung_continues_to_the_next() -> None:
    trials = [paused(0, 0.5), paused(1, 0.2), paused(2, 0.9)]
    assert next_moves(plan(), trials, 0).promote == {1: 3}


def test_larger_values_continue_where_they_are_better() -> None:
    trials = [paused(0, 0.5), paused(1, 0.2), paused(2, 0.9)]
    maximal = plan().model_copy(update={"mode": "max"})
    assert next_moves(maximal, trials, 0).promote == {2: 3}


def test_a_promoted_trial_is_not_replaced_by_the_next_best() -> None:
    trials = [paused(0, 0.5), paused(1, 0.2, status="running", desired="run", pause_at=3), paused(2, 0.9)]
    assert next_moves(plan(), trials, 0).promote == {}


def test_the_highest_rung_is_served_first() -> None:
    trials = [paused(n, n / 10, rung=3) for n in range(3)] + [paused(n, n / 10) for n in range(3, 9)]
    assert next(iter(next_moves(plan(parallel=1), trials, 0).promote.items())) == (0, 9)


def test_a_loss_that_is_no_number_never_continues() -> None:
    assert next_moves(plan(), [paused(0, None), paused(1, None), paused(2, None)], 0).promote == {}


def test_the_best_trial_is_completed_if_no_other_was() -> None:
    trials = [paused(0, 0.5), paused(1, 0.2)]
    assert next_moves(plan(trials=2), trials, 0).promote == {1: None}


def test_at_the_end_the_others_stop() -> None:
    trials = [paused(0, 0.5), replace(paused(1, 0.2), status="succeeded")]
    moves = next_moves(plan(trials=2), trials, 0)
    assert (moves.state, list(moves.stop)) == ("finished", [0])


def test_a_trial_that_a_user_paused_keeps_the_search_open() -> None:
    trials = [Trial(0, {}, status="paused", desired="paused", pause_at=9, step=2)]
    assert next_moves(plan(trials=1), trials, 0).state == "running"


def test_nothing_starts_after_the_gpu_hours() -> None:
    trials = [paused(0, 0.5), paused(1, 0.2), paused(2, 0.9)]
    moves = next_moves(plan(max_gpu_hours=1), trials, 3600)
    assert (moves.promote, moves.proposals, moves.state) == ({}, 0, "finished")
    assert next_moves(plan(max_gpu_hours=1), [*trials, RUNNING], 3600).state == "running"


def test_places_of_running_trials_are_not_given_twice() -> None:
    resumed = replace(paused(0, 0.1), desired="run", pause_at=3)
    assert next_moves(plan(parallel=2), [resumed, RUNNING], 0).proposals == 0


def test_a_search_whose_specs_are_all_rejected_fails() -> None:
    rejected = [Trial(number, {}, rejected=True) for number in range(MAX_REJECTED)]
    assert next_moves(plan(trials=100), rejected, 0).state == "failed"
    assert next_moves(plan(trials=100), rejected[1:], 0).state == "running"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1, 27, 3, 1), (1, 3, 9)),
        ((10, 1000, 4, 25), (25, 50, 175, 650)),
        ((5, 5, 3, 1), ()),
        ((1, 10, 3, 20), ()),
    ],
)
def test_rungs_are_steps_with_a_value_before_the_end(arguments: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert rung_steps(*arguments) == expected


def test_hyperband_fills_its_brackets_by_their_shares() -> None:
    counts = [0] * 4
    for number in range(68):
        counts[plan("hyperband").bracket_of(number)] += 1
    # (s_max + 1) / (s + 1) * eta^s for s = 3, 2, 1, 0: 27, 12, 6 and 4 of 49.
    assert counts == [37, 17, 8, 6]
    assert plan("hyperband").first_pause(3) is None


def failed(number: int, error: str) -> Trial:
    return Trial(number, {}, status="failed", reason="error", error=error)


def test_a_search_ends_after_the_same_final_error_of_its_first_jobs() -> None:
    trials = [failed(number, "there is no model /m") for number in range(3)]
    moves = next_moves(plan("random"), trials, 0)
    assert (moves.state, moves.proposals) == ("failed", 0)
    assert moves.message == "3 jobs failed with the same error: there is no model /m"


@pytest.mark.parametrize("other", [failed(2, "another"), failed(2, ""), RUNNING, paused(2, 0.5)])
def test_a_search_goes_on_after_different_ends(other: Trial) -> None:
    trials = [failed(0, "there is no model /m"), failed(1, "there is no model /m"), replace(other, number=2)]
    moves = next_moves(plan("random"), trials, 0)
    assert moves.state == "running"
    assert moves.proposals > 0
