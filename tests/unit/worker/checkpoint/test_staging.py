"""The copy of a state beside the training, and the assignment of replicated tensors to the ranks that write them."""

import threading

import torch

from worker.checkpoint.staging import OverlappedStager, writer_share


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
    def test_copy_is_complete_after_the_wait_and_its_buffer_is_reused(self):
        stager = OverlappedStager(torch.device("cpu"))
        weight = torch.zeros(1000)
        first = stager.stage({"w": weight})
        stager.synchronize_staging()
        weight.add_(1)
        assert torch.equal(first.result()["w"], torch.zeros(1000))
        second = stager.stage({"w": weight})
        stager.synchronize_staging()
        assert torch.equal(second.result()["w"], torch.ones(1000))
        assert second.result()["w"].data_ptr() == first.result()["w"].data_ptr()

    def test_wait_lasts_until_the_copy_is_complete(self, monkeypatch):
        stager, weight, begin = OverlappedStager(torch.device("cpu")), torch.zeros(1000), threading.Event()
        copy = stager._copy
        monkeypatch.setattr(stager, "_copy", lambda state: begin.wait(10) and copy(state))
        staged = stager.stage({"w": weight})
        updates = threading.Thread(target=lambda: (stager.synchronize_staging(), weight.add_(1)))
        updates.start()
        assert not staged.done(), "the caller goes on beside the copy"
        begin.set()
        updates.join()
        assert torch.equal(staged.result()["w"], torch.zeros(1000))
        assert torch.equal(weight, torch.ones(1000))

    def test_failed_copy_is_an_error_of_the_save(self, monkeypatch):
        stager = OverlappedStager(torch.device("cpu"))
        monkeypatch.setattr(stager, "_copy", lambda state: state["absent"])
        staged = stager.stage({})
        stager.synchronize_staging()
        assert isinstance(staged.exception(), KeyError)
