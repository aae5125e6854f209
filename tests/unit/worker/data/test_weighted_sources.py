"""Mixtures: exact shares of each epoch, and the same examples at each step on any number of ranks and when resumed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.errors import RefusedError
from worker.data.mixture import Mixture
from worker.data.sampler import GlobalBatches, WeightedSources, micro_batches, shares

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=5)
seeds = st.integers(0, 2**60)


@st.composite
def mixtures(draw):
    counts = draw(sizes)
    weights = draw(st.lists(st.floats(0.2, 5), min_size=len(counts), max_size=len(counts)))
    return counts, weights


def source_of(indices, counts):
    return np.searchsorted(np.cumsum(counts), indices, side="right")


class TestShares:
    @given(st.integers(0, 10_000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8))
    def test_counts_add_up_and_differ_from_the_exact_share_by_less_than_one(self, total, weights):
        counts = shares(total, weights)
        assert sum(counts) == total
        for count, weight in zip(counts, weights, strict=True):
            assert math.floor(total * weight / sum(weights) - 1e-6) <= count <= total * weight / sum(weights) + 1 + 1e-6

    @pytest.mark.parametrize(
        ("total", "weights", "expected"),
        [(10, [1, 1, 1], [4, 3, 3]), (7, [2, 1], [5, 2]), (8, [0.7, 0.2, 0.1], [5, 2, 1]), (3, [1], [3])],
    )
    def test_largest_remainders_get_the_rest(self, total, weights, expected):
        assert shares(total, weights) == expected


class TestEpochs:
    @given(mixtures(), seeds, st.booleans())
    def test_each_epoch_has_exactly_the_share_of_each_source(self, mixture, seed, shuffle):
        counts, weights = mixture
        order = WeightedSources(counts, weights, seed=seed, shuffle=shuffle)
        for epoch in range(3):
            drawn = np.bincount(source_of(order.of_epoch(epoch), counts), minlength=len(counts))
            assert drawn.tolist() == order.draws
        assert sum(order.draws) == sum(counts)

    @given(mixtures(), seeds, st.booleans())
    def test_draws_of_a_source_pass_over_all_of_it_before_any_comes_again(self, mixture, seed, shuffle):
        counts, weights = mixture
        order = WeightedSources(counts, weights, seed=seed, shuffle=shuffle)
        drawn = np.concatenate([order.of_epoch(epoch) for epoch in range(4)])
        first = 0
        for source, count in enumerate(counts):
            own = drawn[source_of(drawn, counts) == source]
            for start in range(0, len(own) - count + 1, count):
                assert sorted(own[start : start + count]) == list(range(first, first + count))
            first += count

    def test_passes_and_seeds_have_orders_of_their_own(self):
        order = WeightedSources([50, 50], [1, 1], seed=3)
        passes = [order.of_epoch(epoch) for epoch in range(2)]
        first, second = ([index for index in one if index < 50] for one in passes)
        other = [index for index in WeightedSources([50, 50], [1, 1], seed=4).of_epoch(0) if index < 50]
        assert first != second
        assert first != other

    def test_sources_of_the_same_size_have_different_orders(self):
        epoch = WeightedSources([50, 50], [1, 1], seed=3).of_epoch(0)
        assert [index for index in epoch if index < 50] != [index - 50 for index in epoch if index >= 50]

    @given(mixtures(), seeds, st.booleans())
    def test_numbered_draws_have_the_pass_in_their_number(self, mixture, seed, shuffle):
        counts, weights = mixture
        plain, numbered = (
            WeightedSources(counts, weights, seed=seed, shuffle=shuffle, numbered=one) for one in (False, True)
        )
        drawn = np.concatenate([numbered.of_epoch(epoch) for epoch in range(4)])
        assert (drawn % sum(counts)).tolist() == np.concatenate([plain.of_epoch(n) for n in range(4)]).tolist()
        assert len(np.unique(drawn)) == len(drawn)
        passes, sources = drawn // sum(counts), source_of(drawn % sum(counts), counts)
        for source, count in enumerate(counts):
            own = passes[sources == source]
            assert own.tolist() == (np.arange(len(own)) // count).tolist()

    def test_without_shuffling_sources_alternate_in_their_order(self):
        assert WeightedSources([4, 2], [2, 1], seed=0, shuffle=False).of_epoch(0).tolist() == [0, 4, 1, 2, 5, 3]

    def test_order_never_changes_between_releases(self):
        assert WeightedSources([5, 3], [1, 3], seed=5).of_epoch(2).tolist() == [2, 5, 7, 6, 5, 7, 6, 4]


class TestBatches:
    COUNTS, WEIGHTS, SIZE = [40, 7, 23], [1.0, 2.0, 0.5], 9

    def batches(self, **options):
        order = WeightedSources(self.COUNTS, self.WEIGHTS, seed=11)
        return GlobalBatches(sum(self.COUNTS), self.SIZE, seed=11, order=order, **options)

    @pytest.mark.parametrize("last", ["keep", "drop", "pad"])
    def test_ranks_together_have_the_same_examples_at_each_step(self, last):
        alone = self.batches(last=last)
        for world in (1, 2, 3):
            batches = self.batches(last=last)
            for step in range(25):
                parts = [part for rank in range(world) for part in micro_batches(batches.at(step), rank, world, 2)]
                assert np.concatenate(parts).tolist() == alone.at(step).tolist()

    @pytest.mark.parametrize("last", ["keep", "drop", "pad"])
    def test_a_resumed_run_has_the_same_examples_at_each_step(self, last):
        whole = self.batches(last=last)
        expected = [whole.at(step).tolist() for step in range(30)]
        for start in range(30):
            resumed = self.batches(last=last)
            assert [resumed.at(step).tolist() for step in range(start, 30)] == expected[start:]

    def test_examples_before_a_step_are_those_of_the_steps(self):
        batches = self.batches()
        before = np.concatenate(list(batches.before(20)))
        assert before.tolist() == np.concatenate([batches.at(step) for step in range(20)]).tolist()


def test_weight_that_gives_a_source_no_row_is_refused():
    with pytest.raises(RefusedError, match=r"data.sources.1.weight is 1e-06, too little for one of the 20 rows"):
        Mixture(("a", "b"), (10, 10), (1.0, 1e-6)).order(seed=0, shuffle=True)
