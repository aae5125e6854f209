"""`micro_size: auto`: the largest halving of a rank's share that fits."""

import pytest
import torch
from torch import nn

from worker.engine.micro_batch_size import estimate, halvings, preserve_buffers, search_down


class TestHalvings:
    @pytest.mark.parametrize(("share", "sizes"), [(1, [1]), (5, [5, 3, 2, 1]), (16, [16, 8, 4, 2, 1])])
    def test_halvings_end_at_one(self, share, sizes):
        assert halvings(share) == sizes


class TestTrials:
    @pytest.mark.parametrize(
        ("most", "chosen", "tried"), [(16, 16, (16,)), (7, 4, (16, 8, 4)), (0, 1, (16, 8, 4, 2, 1))]
    )
    def test_first_size_that_fits_is_chosen(self, most, chosen, tried):
        choice = search_down(16, lambda size: size <= most)
        assert (choice.micro_size, choice.tried) == (chosen, tried)

    def test_size_one_is_not_tried(self):
        requested = []
        search_down(4, lambda size: requested.append(size))
        assert requested == [4, 2]


class TestEstimate:
    @pytest.mark.parametrize(("room", "chosen"), [(100 + 15 * 10, 16), (100 + 15 * 10 - 1, 8), (50, 1)])
    def test_estimate_is_linear_in_two_peaks(self, room, chosen):
        assert estimate(16, (100, 110), room).micro_size == chosen

    def test_constant_memory_always_fits(self):
        assert estimate(16, (100, 100), 101).micro_size == 16


class TestBuffers:
    def test_batch_statistics_are_restored_after_a_trial(self):
        model = nn.BatchNorm1d(3)
        before = {name: value.clone() for name, value in model.named_buffers()}
        with preserve_buffers(model):
            model(torch.randn(8, 3))
            assert model.num_batches_tracked == 1
        for name, value in model.named_buffers():
            assert torch.equal(value, before[name])
