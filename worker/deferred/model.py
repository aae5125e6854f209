"""A model whose tensors have no memory yet, and where their values come from."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from worker.deferred.recording import CannotDeferError, DeferredTensor, Recording, StorageKey, find_uninitialised, record
from worker.deferred.replay import replay


@dataclass(frozen=True)
class Destination:
    """Memory of this rank for a tensor or some of its rows."""

    memory: torch.Tensor
    rows: slice
    """The rows of the whole tensor; a tensor without dimensions is whole."""

    @torch.no_grad()
    def store(self, whole: torch.Tensor) -> None:
        self.memory.copy_(whole[self.rows] if whole.ndim else whole)


class Files(Protocol):
    """Stored tensors."""

    def __contains__(self, storage: StorageKey) -> bool:
        """Return whether the tensor with this storage comes from a file."""
        ...

    def fill(self, storage: StorageKey, destinations: Sequence[Destination]) -> None:
        """Read each destination's rows of the tensor with this storage."""
        ...


class _NoFiles:
    def __contains__(self, storage: StorageKey) -> bool:
        return False

    def fill(self, storage: StorageKey, destinations: Sequence[Destination]) -> None:
        raise KeyError(storage)


@dataclass(frozen=True)
class DeferredModel:
    """A module on the meta device. Tensors that need no random numbers and little memory may be real already."""

    module: nn.Module
    recordings: tuple[Recording, ...]
    """In the order in which they were made."""
    files: Files = _NoFiles()

    def extended(self, change: Callable[[nn.Module], None]) -> "DeferredModel":
        """Change the module and return the model with what was added to it.

        Raises:
            CannotDeferError: The change does more than to add tensors.
        """

        def build() -> nn.Module:
            change(self.module)
            return self.module

        module, recording = record(build)
        return DeferredModel(module, (*self.recordings, recording), self.files)

    def tensors(self) -> dict[str, DeferredTensor]:
        """Return the module's deferred parameters and buffers by each of their names.

        Raises:
            CannotDeferError: Nothing determines the values of one.
        """
        empty = set[StorageKey]().union(*(find_uninitialised(recording) for recording in self.recordings))
        found: dict[str, DeferredTensor] = {}
        for name, tensor in _named_tensors(self.module):
            described = next(filter(None, (recording.describe(tensor) for recording in self.recordings)), None)
            if described is None:
                continue
            if described.storage in empty and described.storage not in self.files:
                raise CannotDeferError(f"`{name}`, whose memory is not initialised")
            found[name] = described
        return found

    def fill(self, destinations: Mapping[DeferredTensor, Sequence[Destination]]) -> None:
        """Draw, compute or read the values, and store each rank's part of them. Afterwards torch's default generator is
        where a usual start leaves it."""
        torch.set_rng_state(self.recordings[0].generator_state)
        for recording in self.recordings:
            computed = {
                tensor: [destination.store for destination in chosen]
                for tensor, chosen in destinations.items()
                if tensor.storage in recording.sizes and tensor.storage not in self.files
            }
            # Reading a model from files draws nothing.
            replay(recording, computed, draw=not any(storage in self.files for storage in recording.sizes))
        stored: dict[StorageKey, list[Destination]] = defaultdict(list)
        for tensor, chosen in destinations.items():
            if tensor.storage in self.files:
                stored[tensor.storage] += chosen
        for storage, chosen in stored.items():
            self.files.fill(storage, chosen)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
