"""Where the collectives of the ranks differ."""

import math
from collections.abc import Mapping, Sequence

import pytest

from worker.core.flight_recorder import Collective
from worker.launcher.collectives import find_difference


def entered(number: int, name: str = "all_reduce", sizes: Sequence[int] = (100,), *, done: bool = False) -> Collective:
    return Collective(number=number, name=name, sizes=[list(sizes)], bytes=4 * math.prod(sizes), is_complete=done)


DONE = [entered(number, done=True) for number in range(1, 6)]
WAITS = [*DONE, entered(6)]
Ranks = Mapping[int, Mapping[str, Sequence[Collective]]]


@pytest.mark.parametrize(
    ("ranks", "missing", "text"),
    [
        (
            {0: {"gloo:0": WAITS}, 1: {"gloo:0": DONE}, 2: {"gloo:0": WAITS}},
            (1,),
            "Rank 1 has not entered all_reduce 6 ([100], 400 B); 2 ranks wait in it",
        ),
        (
            {0: {"gloo:0": WAITS}, 1: {}, 2: {}},
            (1, 2),
            "Ranks 1, 2 have not entered all_reduce 6 ([100], 400 B); 1 rank waits in it",
        ),
        (
            # Rank 0 has enqueued more of NCCL's collectives than the one that waits.
            {0: {"gloo:0": [*WAITS, entered(7), entered(8)]}, 1: {"gloo:0": DONE}},
            (1,),
            "Rank 1 has not entered all_reduce 6 ([100], 400 B); 1 rank waits in it",
        ),
        (
            # A group that rank 2 does not belong to.
            {0: {"gloo:0": DONE, "gloo:3": WAITS}, 1: {"gloo:0": DONE, "gloo:3": DONE}, 2: {"gloo:0": DONE}},
            (1,),
            "Rank 1 has not entered all_reduce 6 ([100], 400 B); 1 rank waits in it",
        ),
        (
            # Both have entered the first one, which runs beside the next step.
            {0: {"gloo:0": [entered(1, "all_gather"), entered(2)]}, 1: {"gloo:0": [entered(1, "all_gather")]}},
            (1,),
            "Rank 1 has not entered all_reduce 2 ([100], 400 B); 1 rank waits in it",
        ),
    ],
)
def test_rank_that_has_not_entered_a_collective(ranks: Ranks, missing: tuple[int, ...], text: str) -> None:
    difference = find_difference(ranks)
    assert difference is not None
    assert (difference.ranks, difference.is_order, difference.text) == (missing, False, text)


@pytest.mark.parametrize(
    ("of_rank_2", "text"),
    [
        (
            entered(6, "barrier", (1,)),
            "Rank 2 is in barrier 6 ([1], 4 B), but ranks 0, 1 are in all_reduce 6 ([100], 400 B)",
        ),
        (
            entered(6, sizes=(2_000_000, 3)),
            "Rank 2 is in all_reduce 6 ([2000000, 3], 22.9 MiB), but ranks 0, 1 are in all_reduce 6 ([100], 400 B)",
        ),
    ],
)
def test_rank_in_another_collective(of_rank_2: Collective, text: str) -> None:
    difference = find_difference({0: {"gloo:0": WAITS}, 1: {"gloo:0": WAITS}, 2: {"gloo:0": [*DONE, of_rank_2]}})
    assert difference is not None
    assert (difference.ranks, difference.is_order) == ((2,), True)
    assert difference.text == text


@pytest.mark.parametrize(
    ("of_rank_2", "others"),
    [
        (entered(6, sizes=(10, 10)), entered(6)),
        (entered(6, "all_gather", (7,)), entered(6, "all_gather")),
        (entered(6, "reduce_scatter", (7,)), entered(6, "reduce_scatter")),
    ],
)
def test_shapes_that_a_collective_accepts_are_no_difference(of_rank_2: Collective, others: Collective) -> None:
    waits = [*DONE, others]
    assert find_difference({0: {"gloo:0": waits}, 1: {"gloo:0": waits}, 2: {"gloo:0": [*DONE, of_rank_2]}}) is None


def test_order_explains_more_than_a_missing_rank() -> None:
    ranks = {
        0: {"gloo:0": WAITS, "gloo:1": [entered(1, "broadcast")]},
        1: {"gloo:0": DONE, "gloo:1": [entered(1, "all_gather")]},
    }
    difference = find_difference(ranks)
    assert difference is not None
    assert difference.is_order


@pytest.mark.parametrize(
    "ranks",
    [
        {},
        {0: {}, 1: {}},
        {0: {"gloo:0": DONE}, 1: {"gloo:0": DONE}},
        {0: {"gloo:0": WAITS}, 1: {"gloo:0": WAITS}},
        {0: {"gloo:0": [entered(1, "gather", (3,))]}, 1: {"gloo:0": [entered(1, "gather", (4,))]}},
        {0: {"gloo:1": WAITS}},
    ],
)
def test_no_difference(ranks: Ranks) -> None:
    assert find_difference(ranks) is None
