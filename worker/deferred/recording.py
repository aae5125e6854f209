"""The operations that initialise a model, for `worker.deferred.replay`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_flatten

StorageKey: TypeAlias = int
"""Identifies the storage of a deferred tensor; views share it."""

ALLOCATIONS = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default})
"""Operations that create tensors without values."""


class CannotDeferError(Exception):
    """The initialisation contains something whose result could differ if it was computed later."""


@dataclass(frozen=True)
class DeferredTensor:
    """A tensor of a recording: a view of a storage."""

    storage: StorageKey
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """The position of its first element in the storage."""


@dataclass(frozen=True)
class Operation:
    """A recorded call. Deferred tensors in its arguments are `DeferredTensor`s."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[DeferredTensor, ...]
    """New tensors; empty for an operation in place."""
    overwrites: StorageKey | None
    """The storage whose earlier values do not matter."""

    changed: frozenset[StorageKey]
    """The storages that it changes or creates."""

    @property
    def storages(self) -> set[StorageKey]:
        """The storages that it reads, changes or creates."""
        inputs = (leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, DeferredTensor))
        return {tensor.storage for tensor in (*inputs, *self.outputs)}

    @property
    def draws(self) -> bool:
        """Whether it advances or seeds torch's default generator."""
        return torch.Tag.nondeterministic_seeded in getattr(self.function, "tags", (torch.Tag.nondeterministic_seeded,))


@dataclass
class Recording:
    """The operations that initialise a module, in order."""

    generator_state: torch.Tensor
    """The state of torch's default generator before the first operation."""
    operations: list[Operation] = field(default_factory=list)
    sizes: dict[StorageKey, int] = field(default_factory=dict)
    """Bytes of each storage."""
    _storages: list[torch.UntypedStorage] = field(default_factory=list)
    """References to the storages, so that no key is used twice."""

    def describe(self, tensor: torch.Tensor) -> DeferredTensor | None:
        """Return the deferred tensor for which a meta tensor stands; None if the recording does not know it."""
        if not tensor.is_meta:
            return None
        key = tensor.untyped_storage()._cdata
        if key not in self.sizes:
            return None
        return DeferredTensor(key, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def add(self, tensor: torch.Tensor) -> DeferredTensor:
        storage = tensor.untyped_storage()
        self._storages.append(storage)
        self.sizes[storage._cdata] = storage.nbytes()
        described = self.describe(tensor)
        assert described is not None
        return described


def find_uninitialised(recording: Recording) -> set[StorageKey]:
    """Return the storages to which nothing is written.

    Raises:
        CannotDeferError: A storage is used before all of it is written, so that its values are arbitrary.
    """
    empty: set[StorageKey] = set()
    for operation in recording.operations:
        if operation.overwrites is not None:
            empty.discard(operation.overwrites)
        if operation.function in ALLOCATIONS:
            empty |= operation.storages
        elif used := empty & operation.storages:
            raise CannotDeferError(f"{operation.function} on {recording.sizes[used.pop()]} bytes without values")
    return empty
