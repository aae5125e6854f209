"""The assignment of replicated tensors to the ranks that write them."""

import torch

from worker.checkpoint.staging import build_stager, writer_share


def state():
    return {
        "model": {"a": torch.ones(60), "b": torch.ones(50), "c": torch.ones(30)},
        "optimizer": {"state.a.exp_avg": torch.ones(60), "state.b.step": torch.ones(())},
        "progress": {"step": torch.tensor(3)},
        "rng": {"rank-0": torch.ones(4)},
    }


class TestShares:
    def test_every_whole_tensor_is_written_by_exactly_one_rank(self):
        for world in (2, 3, 4):
            names = [
                (part, name)
                for rank in range(world)
                for part in ("model", "optimizer")
                for name in writer_share(state(), rank, world)[part]
            ]
            assert sorted(names) == sorted((part, name) for part in ("model", "optimizer") for name in state()[part])

    def test_ranks_write_similar_amounts(self):
        sizes = [
            sum(t.nbytes for part in ("model", "optimizer") for t in writer_share(state(), rank, 2)[part].values())
            for rank in (0, 1)
        ]
        assert max(sizes) <= 0.55 * sum(sizes)

    def test_every_rank_writes_its_progress_and_generators(self):
        for rank in (0, 1):
            assert writer_share(state(), rank, 2)["rng"].keys() == {"rank-0"}
            assert int(writer_share(state(), rank, 2)["progress"]["step"]) == 3

    def test_single_rank_writes_everything(self):
        assert writer_share(state(), 0, 1).keys() == state().keys()
        assert writer_share(state(), 0, 1)["model"].keys() == {"a", "b", "c"}


class TestStaging:
    def test_copy_is_complete_on_return_and_its_buffer_is_reused(self):
        stager = build_stager(torch.device("cpu"))
        weight = torch.zeros(1000)
        first = stager.stage({"w": weight})
        weight.add_(1)
        assert torch.equal(first["w"], torch.zeros(1000))
        second = stager.stage({"w": weight})
        assert torch.equal(second["w"], torch.ones(1000))
        assert second["w"].data_ptr() == first["w"].data_ptr()
