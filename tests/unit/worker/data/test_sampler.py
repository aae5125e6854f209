import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.data.sampler import GlobalBatches, digest, micro_batches, share

examples = st.integers(1, 200)
sizes = st.integers(1, 64)
seeds = st.integers(0, 2**60)
worlds = st.integers(1, 9)


class TestGlobalBatches:
    @given(examples, sizes, seeds)
    def test_epoch_has_every_example_once(self, n, size, seed):
        batches = GlobalBatches(n, size, seed=seed)
        epoch = np.concatenate([batches.at(step) for step in range(batches.steps_per_epoch)])
        assert sorted(epoch) == list(range(n))

    @given(examples, sizes, seeds, st.sampled_from(["keep", "pad"]), st.integers(0, 1000))
    def test_batch_depends_only_on_the_step(self, n, size, seed, last, step):
        walked = GlobalBatches(n, size, seed=seed, last=last)
        for earlier in range(max(0, step - 3), step):
            walked.at(earlier)
        jumped = GlobalBatches(n, size, seed=seed, last=last)
        assert digest(walked.at(step)) == digest(jumped.at(step))

    @given(examples, sizes, seeds)
    def test_drop_leaves_only_whole_batches(self, n, size, seed):
        if n < size:
            with pytest.raises(ValueError, match="do not make one batch"):
                GlobalBatches(n, size, seed=seed, last="drop")
            return
        batches = GlobalBatches(n, size, seed=seed, last="drop")
        assert {len(batches.at(step)) for step in range(batches.steps_per_epoch)} == {size}

    @given(examples, sizes, seeds)
    def test_pad_fills_from_the_start_of_the_epoch(self, n, size, seed):
        padded, retained = GlobalBatches(n, size, seed=seed, last="pad"), GlobalBatches(n, size, seed=seed)
        assert padded.steps_per_epoch == retained.steps_per_epoch
        final = padded.at(padded.steps_per_epoch - 1)
        own = retained.at(retained.steps_per_epoch - 1)
        assert len(final) == size
        order = np.concatenate([retained.at(step) for step in range(retained.steps_per_epoch)])
        assert list(final) == [*own, *np.resize(order, size - len(own))]

    @given(examples, sizes, seeds, st.sampled_from(["keep", "drop", "pad"]), st.integers(0, 300))
    def test_examples_before_a_step_are_those_of_its_batches(self, n, size, seed, last, step):
        if last == "drop" and n < size:
            return
        batches = GlobalBatches(n, size, seed=seed, last=last)
        one_by_one = [batches.at(earlier) for earlier in range(step)]
        expected = np.bincount(np.concatenate([[], *one_by_one]).astype(np.int64), minlength=n)
        counted = np.bincount(np.concatenate([[], *batches.before(step)]).astype(np.int64), minlength=n)
        assert counted.tolist() == expected.tolist()

    def test_epochs_and_seeds_differ(self):
        batches = GlobalBatches(100, 100, seed=1)
        assert digest(batches.at(0)) != digest(batches.at(1))
        assert digest(batches.at(0)) != digest(GlobalBatches(100, 100, seed=2).at(0))
        assert digest(batches.at(0)) != digest(GlobalBatches(100, 100, seed=1 + 2**32).at(0))

    def test_shuffle_order_is_stable_across_versions(self):
        assert list(GlobalBatches(8, 8, seed=5).at(0)) == [2, 7, 5, 0, 4, 3, 6, 1]

    def test_order_without_shuffling_is_that_of_the_data(self):
        assert list(GlobalBatches(5, 2, seed=5, shuffle=False).at(1)) == [2, 3]


class TestShare:
    @given(st.integers(0, 100), worlds)
    def test_parts_are_contiguous_and_differ_by_at_most_one(self, n, world):
        parts = [share(np.arange(n), rank, world) for rank in range(world)]
        assert list(np.concatenate(parts)) == list(range(n))
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)


class TestMicroBatches:
    @given(st.integers(1, 100), worlds, st.none() | st.integers(1, 20))
    def test_micro_batches_of_all_ranks_form_the_batch(self, n, world, micro_size):
        ranks = [micro_batches(np.arange(n), rank, world, micro_size) for rank in range(world)]
        assert len({len(pieces) for pieces in ranks}) == 1
        assert all(len(part) <= (micro_size or n) for pieces in ranks for part in pieces)
        assert list(np.concatenate([part for pieces in ranks for part in pieces])) == list(range(n))
