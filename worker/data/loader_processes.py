"""Loader processes: they prepare the batches of the next steps, for examples that are decoded on use."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from worker.core.random_state import seed_generators
from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices


class LoaderProcesses:
    """Child processes of a rank, which prepare its batches in the order in which the steps request them.

    Draws in `train_batch` depend on the seed and on the batch's examples alone: not on the number of processes, nor
    on whether the run was resumed. The rank's own generators do not change.
    """

    def __init__(self, examples: Examples, order: Iterable[Indices], *, processes: int, seed: int) -> None:
        """`order`: the examples of each micro-batch, in the order of the steps; read as the steps advance."""
        loader = DataLoader(
            _Batches(examples, seed),
            batch_size=None,
            sampler=_Order(order),
            num_workers=processes,
            collate_fn=_unchanged,
            # A forked process shares the examples in memory. It uses no GPU.
            multiprocessing_context="fork",
            # Otherwise torch draws from the rank's generator.
            generator=torch.Generator(),
        )
        self._prepared: Iterator[tuple[bytes, Tensors]] | None = iter(loader)

    def next(self, indices: Indices) -> Tensors:
        """Return the next batch, on the CPU, which must have these examples. Raises the errors of `train_batch`."""
        assert self._prepared is not None, "the loader processes have ended"
        key, batch = next(self._prepared)
        assert key == indices.tobytes(), "the steps request other batches than were prepared"
        return batch

    def close(self) -> None:
        """End the processes."""
        self._prepared = None


class _Batches(Dataset[Any]):
    def __init__(self, examples: Examples, seed: int) -> None:
        self._examples = examples
        self._seed = seed

    def __getitem__(self, indices: Indices) -> tuple[bytes, Tensors]:
        key = indices.tobytes()
        seed_generators(int.from_bytes(hashlib.sha256(key + str(self._seed).encode()).digest()[:8]))
        return key, self._examples.train_batch(indices, torch.device("cpu"))


class _Order(Sampler[Any]):
    def __init__(self, order: Iterable[Indices]) -> None:
        self._order = order

    def __iter__(self) -> Iterator[Indices]:
        return iter(self._order)


def _unchanged(batch: Any) -> Any:
    return batch
