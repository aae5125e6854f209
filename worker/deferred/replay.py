"""Computes recorded operations in order, and gives each tensor to its destination after its last operation.

A storage exists from the operation that writes all of it to its last use before it is written anew. So the host holds
one tensor at a time for a usual model, and torch's default generator advances as if every tensor had been computed
whole.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_flatten, tree_map

from worker.deferred.recording import ALLOCATIONS, DeferredTensor, Operation, Recording, StorageKey

Store: TypeAlias = Callable[[torch.Tensor], None]
"""Gets a whole tensor in host memory, and takes the part that it needs."""


@torch.no_grad()
def replay(recording: Recording, destinations: Mapping[DeferredTensor, Sequence[Store]], *, draw: bool = True) -> None:
    """Compute the recording's operations, with torch's default generator in its present state.

    Args:
        destinations: The functions that take the values of each needed tensor.
        draw: Compute operations that draw random numbers even if no destination needs them, so that torch's default
            generator is afterwards where it would be without a recording.
    """
    operations = _needed(recording, {tensor.storage for tensor in destinations}, draw=draw)
    storages: dict[StorageKey, torch.UntypedStorage] = {}
    outputs: dict[StorageKey, list[DeferredTensor]] = defaultdict(list)
    for tensor in destinations:
        outputs[tensor.storage].append(tensor)
    for operation, (unneeded, finished) in zip(operations, _ends(operations), strict=True):
        _compute(operation, storages, recording.sizes)
        for key in finished:
            for tensor in outputs.get(key, ()):
                for store in destinations[tensor]:
                    store(_view(tensor, storages[key]))
        for key in unneeded | finished:
            storages.pop(key, None)


def _needed(recording: Recording, targets: set[StorageKey], *, draw: bool) -> list[Operation]:
    """Return the operations on which the targets depend, and with `draw` those that draw random numbers."""
    needed, chosen = set(targets), []
    for operation in reversed(recording.operations):
        # Memory is allocated by the operation that writes it.
        if operation.function in ALLOCATIONS or not (operation.changed & needed or (draw and operation.draws)):
            continue
        chosen.append(operation)
        if operation.overwrites is not None:
            needed.discard(operation.overwrites)
        needed |= operation.storages - {operation.overwrites}
    return chosen[::-1]


def _ends(operations: Sequence[Operation]) -> list[tuple[set[StorageKey], set[StorageKey]]]:
    """Return, for each operation, its storages that the next use overwrites, and its storages without a next use."""
    ends: list[tuple[set[StorageKey], set[StorageKey]]] = []
    following: dict[StorageKey, Operation] = {}
    for operation in reversed(operations):
        used = operation.storages
        finished = used - following.keys()
        unneeded = {key for key in used - finished if following[key].overwrites == key}
        ends.append((unneeded, finished))
        following |= dict.fromkeys(used, operation)
    return ends[::-1]


def _compute(
    operation: Operation, storages: dict[StorageKey, torch.UntypedStorage], sizes: Mapping[StorageKey, int]
) -> None:
    key = operation.overwrites
    if key is not None and key not in storages:
        storages[key] = _allocate(sizes[key])

    def real(leaf: Any) -> Any:
        return _view(leaf, storages[leaf.storage]) if isinstance(leaf, DeferredTensor) else leaf

    args, kwargs = tree_map(real, (operation.args, operation.kwargs))
    result = operation.function(*args, **kwargs)
    if not operation.outputs:
        return
    created = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
    known = {storage._cdata for storage in storages.values()}
    new = [tensor for tensor in created if tensor.untyped_storage()._cdata not in known]
    for expected, tensor in zip(operation.outputs, new, strict=True):
        storages[expected.storage] = _arranged(expected, tensor, sizes[expected.storage])


def _arranged(expected: DeferredTensor, tensor: torch.Tensor, size: int) -> torch.UntypedStorage:
    """Return a storage that holds a computed tensor as the recording describes it."""
    storage = tensor.untyped_storage()
    layout = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if layout == (expected.dtype, expected.size, expected.stride, expected.offset) and storage.nbytes() == size:
        return storage
    rearranged = _allocate(size)
    _view(expected, rearranged).copy_(tensor)
    return rearranged


def _allocate(size: int) -> torch.UntypedStorage:
    return torch.empty(size, dtype=torch.uint8).untyped_storage()


def _view(tensor: DeferredTensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.offset, tensor.size, tensor.stride)
