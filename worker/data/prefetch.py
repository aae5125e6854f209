"""The next step's batches, gathered while the device is busy with this one's."""

from dataclasses import dataclass

import torch

from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices


@dataclass(frozen=True)
class _Ready:
    key: bytes
    batch: Tensors


class BatchLoader:
    """Batches on the device. `ahead` is called once a step's kernels are launched: the host has nothing to do then,
    and copies from pinned memory do not make it wait. On a CPU the host is the device, so nothing is loaded ahead.

    Which examples are loaded, and in which order they are used, does not depend on it.
    """

    def __init__(self, examples: Examples, device: torch.device, *, enabled: bool | None = None) -> None:
        self._examples = examples
        self._device = device
        self.enabled = device.type == "cuda" if enabled is None else enabled
        self._ready: list[_Ready] = []

    def load(self, indices: Indices) -> Tensors:
        """The batch of these examples."""
        if self._ready:
            ready = self._ready.pop(0)
            if ready.key == indices.tobytes():
                return ready.batch
            # Something else is trained than was foreseen: what was loaded ahead is of no use.
            self._ready.clear()
        return self._fetch(indices)

    def ahead(self, pieces: list[Indices]) -> None:
        """Load what the next step will ask for, in that order."""
        if self.enabled:
            self._ready = [_Ready(piece.tobytes(), self._fetch(piece)) for piece in pieces]

    def _fetch(self, indices: Indices) -> Tensors:
        if self._device.type != "cuda":
            return self._examples.train_batch(indices, self._device)
        gathered = self._examples.train_batch(indices, torch.device("cpu"))
        return tuple(tensor.pin_memory().to(self._device, non_blocking=True) for tensor in gathered)
