"""Prefetching, garbage collection, FLOPs and compilation."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from worker.core.errors import RefusedError
from worker.data.batch_loader import BatchLoader
from worker.data.examples import Examples
from worker.engine import compilation
from worker.engine.callbacks.garbage_collector import COLLECT_EVERY_STEPS, GarbageCollector
from worker.engine.compilation import compile_blocks
from worker.tasks.gpt import Gpt


class Counted(Examples):
    loads = 0

    def train_batch(self, indices, device):
        type(self).loads += 1
        return super().train_batch(indices, device)


class TestLoader:
    @pytest.fixture
    def loader(self):
        Counted.loads = 0
        rows = torch.arange(20)
        return BatchLoader(Counted((rows,), train=20, held_out=0), torch.device("cpu"), enabled=True)

    def test_prefetched_batches_are_used_in_order_and_once(self, loader):
        pieces = [np.array([3, 1]), np.array([2])]
        loader.prefetch(pieces)
        assert [loader.load(part)[0].tolist() for part in pieces] == [[3, 1], [2]]
        assert Counted.loads == 2

    def test_other_batches_than_the_prefetched_are_loaded(self, loader):
        loader.prefetch([np.array([3, 1]), np.array([2])])
        assert loader.load(np.array([7]))[0].tolist() == [7]
        assert loader.load(np.array([2]))[0].tolist() == [2]

    def test_nothing_is_prefetched_on_a_cpu(self):
        assert not BatchLoader(Examples((torch.arange(2),), 2, 0), torch.device("cpu")).enabled


class TestGarbageCollector:
    def test_garbage_is_collected_only_at_chosen_steps(self, monkeypatch):
        collected = []
        monkeypatch.setattr(gc, "collect", lambda *_: collected.append(len(collected)))
        garbage = GarbageCollector()
        try:
            for step in range(1, COLLECT_EVERY_STEPS + 1):
                garbage.collect_if_due(step)
                assert not gc.isenabled()
        finally:
            garbage.on_loop_end(COLLECT_EVERY_STEPS)
        assert len(collected) == 2
        assert gc.isenabled()

    @pytest.mark.parametrize("frozen_before", [True, False])
    def test_objects_that_the_process_has_frozen_stay_frozen(self, frozen_before):
        frozen_by_pytest = gc.get_freeze_count() > 0
        (gc.freeze if frozen_before else gc.unfreeze)()
        garbage = GarbageCollector()
        try:
            garbage.collect_if_due(1)
            assert gc.get_freeze_count() > 0
            garbage.on_loop_end(1)
            assert (gc.get_freeze_count() > 0) == frozen_before
        finally:
            (gc.freeze if frozen_by_pytest else gc.unfreeze)()


class TestCompile:
    def test_missing_compiler_is_rejected_before_the_first_step(self, monkeypatch):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
        with pytest.raises(RefusedError, match="compile needs a C\\+\\+ compiler"):
            compile_blocks(nn.Linear(1, 1))

    def test_parameter_names_do_not_change(self):
        model = Gpt(GptModel(layers=2, width=8, heads=2, context=4))
        names = [name for name, _ in model.named_parameters()]
        compile_blocks(model)
        assert [name for name, _ in model.named_parameters()] == names
        assert all(block._compiled_call_impl is not None for block in model.blocks)
