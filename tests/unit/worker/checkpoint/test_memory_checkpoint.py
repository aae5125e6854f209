"""A state comes back from memory in every bit, and only a checkpoint that all ranks have is used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from worker.checkpoint.memory_checkpoint import MemoryWriter, find_newer, open_files, size_of
from worker.checkpoint.memory_files import MAX_LOADS, MemoryFile, created_files
from worker.core.distributed import Ranks


def ranks(others: Sequence[Sequence[int]] = (), world: int = 1, *, damaged_elsewhere: bool = False) -> Ranks:
    """Return a rank whose peers have memory checkpoints of the steps `others`."""

    def gather(values: Sequence[float]) -> list[list[float]]:
        return [list(values), *([float(step) for step in row] for row in others)]

    made = SimpleNamespace(rank=0, world=world, gather=gather, any=lambda flag: flag or damaged_elsewhere)
    return cast(Ranks, made)


def state() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "model": {
            "weight": torch.randn(3, 5).to(torch.bfloat16),
            "scalar": torch.tensor(1.5, dtype=torch.float64),
            "strided": torch.randn(4, 6)[:, ::2],
            "empty": torch.empty(0, 4),
            "flags": torch.tensor([True, False]),
        },
        "progress": {"step": torch.tensor(9)},
    }


def cleared(value: Any) -> Any:
    return {name: cleared(part) for name, part in value.items()} if isinstance(value, dict) else torch.zeros_like(value)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], list[MemoryFile]]:
    """Return a function that opens the rank's files as each start does."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    return lambda: [MemoryFile(tmp_path / name) for name in ("a", "b")]


def write(opened: Sequence[MemoryFile], *steps: int, world: int = 1) -> None:
    writer = MemoryWriter(opened, world)
    for step in steps:
        copied = writer.copy(step, state(), {"data": f"digest {step}"})
        copied.commit(copied.digest())


class TestContent:
    def test_every_bit_returns(self, files: Callable[[], list[MemoryFile]]) -> None:
        write(files(), 9)
        stored = find_newer(0, ranks(), files())
        assert stored is not None
        assert (stored.step, stored.sources) == (9, {"data": "digest 9"})
        assert stored.dtypes()["model.weight"] == torch.bfloat16
        loaded = cleared(state())
        stored.load(loaded)
        for part, tensors in state().items():
            for name, tensor in tensors.items():
                assert torch.equal(loaded[part][name], tensor), name
                assert loaded[part][name].dtype == tensor.dtype

    def test_the_copy_is_as_before_later_changes(self, files: Callable[[], list[MemoryFile]]) -> None:
        changed = state()
        copied = MemoryWriter(files(), 1).copy(9, changed, {})
        changed["model"]["weight"].zero_()
        copied.commit(copied.digest())
        stored, loaded = find_newer(0, ranks(), files()), cleared(state())
        assert stored is not None
        stored.load(loaded)
        assert torch.equal(loaded["model"]["weight"], state()["model"]["weight"])

    @pytest.mark.parametrize("change", ["missing", "more", "shape", "dtype"])
    def test_another_state_is_refused(self, files: Callable[[], list[MemoryFile]], change: str) -> None:
        write(files(), 9)
        stored, loaded = find_newer(0, ranks(), files()), cleared(state())
        assert stored is not None
        model = loaded["model"]
        if change == "missing":
            del model["scalar"]
        elif change == "more":
            model["second"] = torch.zeros(1)
        elif change == "shape":
            model["weight"] = model["weight"].T
        else:
            model["weight"] = model["weight"].float()
        with pytest.raises(ValueError, match="memory checkpoint of step 9 has"):
            stored.load(loaded)

    def test_size_counts_each_tensor(self) -> None:
        assert size_of(state()) == 30 + 8 + 48 + 0 + 2 + 8


class TestChoice:
    @pytest.mark.parametrize(
        ("own", "others", "chosen"),
        [
            ((), (), None),
            ((5,), (), 5),
            ((5, 6), (), 6),
            ((5, 6, 7), (), 7),
            ((5, 6), ((5, 6), (6, 5)), 6),
            ((5, 6), ((5, 6), (4, 5)), 5),
            ((5, 6), ((5, 6), (0, 0)), None),
            ((5, 6), ((7, 8),), None),
        ],
    )
    def test_newest_that_all_ranks_have(
        self,
        files: Callable[[], list[MemoryFile]],
        own: tuple[int, ...],
        others: tuple[tuple[int, ...], ...],
        chosen: int | None,
    ) -> None:
        write(files(), *own)
        stored = find_newer(0, ranks(others), files())
        assert (stored.step if stored else None) == chosen

    def test_checkpoint_of_another_number_of_ranks_is_not_used(self, files: Callable[[], list[MemoryFile]]) -> None:
        write(files(), 5, world=2)
        assert find_newer(0, ranks(), files()) is None

    def test_checkpoint_that_is_not_newer_is_not_read(self, files: Callable[[], list[MemoryFile]]) -> None:
        write(files(), 5, 6)
        for _ in range(MAX_LOADS + 1):
            assert find_newer(6, ranks(), files()) is None
        stored = find_newer(5, ranks(), files())
        assert stored is not None
        assert stored.step == 6

    def test_damage_on_another_rank_counts(self, files: Callable[[], list[MemoryFile]]) -> None:
        write(files(), 5)
        assert find_newer(0, ranks(damaged_elsewhere=True), files()) is None

    def test_newest_is_overwritten_last(self, files: Callable[[], list[MemoryFile]]) -> None:
        write(files(), 5, 6)
        opened = files()
        assert find_newer(0, ranks(), opened) is not None
        MemoryWriter(opened, 1).copy(7, state(), {})
        stored = find_newer(0, ranks(), files())
        assert stored is not None
        assert stored.step == 6

    def test_no_rank_has_files_if_one_has_none(self) -> None:
        with created_files() as created:
            variable = created.variable([0])
            assert len(open_files(variable, ranks())) == 2
            assert open_files(variable, ranks(damaged_elsewhere=True)) == []
            assert open_files({}, ranks()) == []
