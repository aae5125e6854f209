"""A model whose tensors have no memory yet, and where their values come from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from worker.deferred.recorder import record
from worker.deferred.recording import (
    CannotDeferError,
    DeferredTensor,
    Recording,
    StorageKey,
    find_uninitialised,
)
from worker.deferred.replay import replay


@dataclass(frozen=True)
class Destination:
    """Memory of this rank for a tensor or some of its rows."""

    memory: torch.Tensor
    rows: slice
    """The rows of the whole tensor; a tensor without dimensions is whole."""
    encode: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Maps rows of values to rows of the memory. None: the memory holds the values, in its own dtype."""

    @torch.no_grad()
    def store(self, whole: torch.Tensor) -> None:
        self.store_part(whole[self.rows] if whole.ndim else whole)

    @torch.no_grad()
    def store_part(self, values: torch.Tensor) -> None:
        """Store this destination's rows."""
        self.memory.copy_(self.encode(values.to(self.memory.device)) if self.encode else values)


class Examination(Protocol):
    """A task's examination of the values of its model before the training."""

    def run(self) -> Any:
        """Return the result, which can be pickled. Runs on one rank.

        Raises:
            CannotDeferError: The model must be whole for it.
        """
        ...

    def apply(self, result: Any) -> None:
        """Prepare the module. Runs on all ranks.

        Raises:
            RefusedError: The model cannot be trained.
        """
        ...


class Files(Protocol):
    """Stored tensors."""

    def __contains__(self, storage: StorageKey) -> bool:
        """Return whether the tensor with this storage comes from a file."""
        ...

    def fill(self, storage: StorageKey, destinations: Sequence[Destination]) -> None:
        """Read each destination's rows of the tensor with this storage."""
        ...


@dataclass(frozen=True)
class DeferredModel:
    """A module on the meta device. Tensors that need no random numbers and little memory may be real already."""

    module: nn.Module
    recordings: tuple[Recording, ...]
    """The recordings in the order in which they were made."""
    files: Files | None = None
    """The source of parameters that are not initialised."""
    examination: Examination | None = None
    described: Mapping[str, DeferredTensor] | None = None
    """The tensors by name, if the module's were replaced by others of the same rows."""

    def extended(self, change: Callable[[nn.Module], None]) -> "DeferredModel":
        """Change the module and return the model with the tensors that were added.

        Raises:
            CannotDeferError: The change does more than to add tensors.
        """

        def build() -> nn.Module:
            change(self.module)
            return self.module

        module, recording = record(build)
        return replace(self, module=module, recordings=(*self.recordings, recording))

    def tensors(self) -> dict[str, DeferredTensor]:
        """Return the module's deferred parameters and buffers by each of their names.

        Raises:
            CannotDeferError: Nothing determines the values of a tensor.
        """
        if self.described is not None:
            return dict(self.described)
        empty = set[StorageKey]().union(*(find_uninitialised(recording) for recording in self.recordings))
        tensors: dict[str, DeferredTensor] = {}
        for name, tensor in _named_tensors(self.module):
            described = next(filter(None, (recording.describe(tensor) for recording in self.recordings)), None)
            if described is None:
                if tensor.is_meta:
                    raise CannotDeferError(f"`{name}`, which has no memory")
                continue
            if described.storage in empty and not self._is_stored(described.storage):
                raise CannotDeferError(f"`{name}`, whose memory is not initialised")
            tensors[name] = described
        return tensors

    def fill(self, destinations: Mapping[DeferredTensor, Sequence[Destination]]) -> None:
        """Draw, compute or read the values, and store each rank's part of them. Afterwards torch's default generator is
        where a usual start leaves it."""
        torch.set_rng_state(self.recordings[0].generator_state)
        for recording in self.recordings:
            computed = {
                tensor: [destination.store for destination in chosen]
                for tensor, chosen in destinations.items()
                if tensor.storage in recording.sizes and not self._is_stored(tensor.storage)
            }
            # Reading a model from files draws nothing.
            replay(recording, computed, draw=not any(map(self._is_stored, recording.sizes)))
        for tensor, chosen in destinations.items():
            if self.files is not None and tensor.storage in self.files:
                self.files.fill(tensor.storage, chosen)

    def compute_buffers(self) -> None:
        """Give the buffers their values, whole."""
        described = self.tensors()
        destinations: dict[DeferredTensor, list[Destination]] = {}
        for name, buffer in list(self.module.named_buffers(remove_duplicate=False)):
            if name in described:
                values = torch.empty_like(buffer, device="cpu")
                destinations.setdefault(described[name], []).append(Destination(values, slice(None)))
                path, _, attribute = name.rpartition(".")
                setattr(self.module.get_submodule(path), attribute, values)
        self.fill(destinations)

    def _is_stored(self, storage: StorageKey) -> bool:
        return self.files is not None and storage in self.files


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
