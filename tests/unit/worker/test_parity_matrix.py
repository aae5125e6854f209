"""The parity matrix covers all pairs of choices and is small enough to run."""

from itertools import combinations

import pytest

from tests.integration.worker.parity_matrix import CHOICES, MATRIX, POSSIBLE, is_valid
from tests.support.pairwise import pairs_of, pairwise


@pytest.mark.parametrize("two", list(combinations(CHOICES, 2)), ids="-".join)
def test_every_valid_pair_of_choices_is_covered(two):
    def met(cases):
        return {tuple(case[choice] for choice in two) for case in cases}

    assert met(MATRIX) == met(POSSIBLE)


def test_strategies_run_on_all_valid_rank_counts():
    spread = {"ddp", "zero1", "zero2", "naive", "layer", "size"}
    result = {(case["variant"], case["ranks"]) for case in MATRIX}
    expected = {(name, ranks) for name in spread for ranks in (1, 2, 3)}
    assert result == expected | {("layer", 4), ("single", 1), ("hsdp", 4)}


def test_matrix_is_small():
    assert all(is_valid(case) for case in MATRIX)
    assert len(MATRIX) <= 36


def test_pairwise_selection_prefers_cheap_cases():
    cases = [{"a": a, "b": b, "c": c} for a in range(3) for b in range(2) for c in range(2)]
    chosen = pairwise(cases, lambda case, _: case["c"] == 1)
    assert set.union(*map(pairs_of, chosen)) == set.union(*map(pairs_of, cases))
    assert len(chosen) == 6
    assert chosen[0]["c"] == 1
