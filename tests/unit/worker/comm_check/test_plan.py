from itertools import combinations

import pytest

from worker.comm_check.plan import bus_factor, groups_of, partner, rounds_of, timed_rounds_of


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce_sum", 2, 1.0),
        ("all_reduce_max", 4, 1.5),
        ("all_reduce_product", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("gather", 2, 0.5),
        ("scatter", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation, ranks, factor):
    assert bus_factor(operation, ranks) == factor


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (2, [(0, 1)]),
        (3, [(0, 1, 2), (1, 2), (0, 2)]),
        (4, [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3)]),
    ],
)
def test_groups_are_unique_and_have_at_least_two_ranks(world, expected):
    assert [group.ranks for group in groups_of(world)] == expected


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8, 17])
def test_each_pair_occurs_once_and_rounds_have_disjoint_pairs(world):
    rounds = rounds_of(world)
    for pairs in rounds:
        inside = [rank for pair in pairs for rank in pair]
        assert len(inside) == len(set(inside))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(world), 2))
    assert len(rounds) <= world


def test_few_pairs_are_timed_one_at_a_time():
    assert timed_rounds_of(3) == [[(0, 1)], [(0, 2)], [(1, 2)]]
    assert timed_rounds_of(17) == rounds_of(17)


def test_partner_is_the_other_rank_of_the_pair():
    assert [partner(rank, [(0, 2), (1, 3)]) for rank in range(5)] == [2, 3, 0, 1, None]
