"""Loads the batches of the next step while the device computes the current step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from worker.data.examples import Examples, Tensors
from worker.data.loader_processes import LoaderProcesses
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
        return tuple(tensor.pin_memory().to(self._device, non_blocking=True) for tensor in gathered)
