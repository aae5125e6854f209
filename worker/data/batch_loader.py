"""Loads the batches of the next step while the device computes the current step; for examples that are decoded on use,
in processes of its own."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from worker.core.processes import die_with_parent
from worker.core.random_state import seed_generators
from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices


@dataclass(frozen=True)
class _Prefetched:
    key: bytes
    batch: Tensors


class BatchLoader:
    """Loads batches onto the device. `prefetch` is called once the kernels of a step are launched: the host is idle
    then, and copies from pinned memory do not block it. On a CPU the host is the device, so prefetching is off.

    Prefetching changes neither which examples are loaded nor the order in which they are used.
    """

    def __init__(self, examples: Examples, device: torch.device, *, enabled: bool | None = None) -> None:
        self._examples = examples
        self._device = device
        self.enabled = device.type == "cuda" if enabled is None else enabled
        self._prefetched: list[_Prefetched] = []
        self._processes: LoaderProcesses | None = None

    def start_processes(self, order: Iterable[Indices], *, processes: int, seed: int) -> None:
        """Let other processes prepare the batches that will be requested, in this order."""
        self._processes = LoaderProcesses(self._examples, order, processes=processes, seed=seed)

    def close(self) -> None:
        """End these processes."""
        if self._processes is not None:
            self._processes.close()

    def load(self, indices: Indices) -> Tensors:
        """Return the batch of these examples on the device, each tensor of shape (len(indices), ...)."""
        if self._prefetched:
            first = self._prefetched.pop(0)
            if first.key == indices.tobytes():
                return first.batch
            # Other examples are requested than were prefetched.
            self._prefetched.clear()
        return self._fetch(indices)

    def prefetch(self, batches: list[Indices]) -> None:
        """Load the batches that the next step will request, in that order."""
        if self.enabled:
            self._prefetched = [_Prefetched(indices.tobytes(), self._fetch(indices)) for indices in batches]

    def _fetch(self, indices: Indices) -> Tensors:
        if self._processes is not None:
            gathered = self._processes.next(indices)
        else:
            gathered = self._examples.train_batch(indices, torch.device("cpu"))
        if self._device.type != "cuda":
            return gathered
        # An empty tensor has no memory to pin.
        pinned = (tensor.pin_memory() if tensor.numel() else tensor for tensor in gathered)
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in pinned)


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
            worker_init_fn=partial(_start_process, os.getpid()),
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


def _start_process(parent: int, _number: int) -> None:
    # The kernel also ends a process that is stopped or waits, which torch's own check of the parent cannot.
    die_with_parent(parent)


def _unchanged(batch: Any) -> Any:
    return batch
