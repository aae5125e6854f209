import pytest

from worker.comm.plan import bus_factor, groups_of, pairs_of


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
def test_groups_have_two_ranks_at_least_and_none_comes_twice(world, expected):
    assert [group.ranks for group in groups_of(world)] == expected


def test_every_pair_comes_once():
    assert pairs_of(3) == [(0, 1), (0, 2), (1, 2)]
