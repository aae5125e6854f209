"""Bytes of live tensors on the CPU and their peak, as `torch.cuda.max_memory_allocated` reports them for a GPU.

Each storage of a tensor is counted once, at its current size. Buffers inside kernels and gloo are not counted.
"""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensorBytes(TorchDispatchMode):
    """While active, counts the storages that operations return; pass existing tensors to `add`."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def add(self, *tensors: torch.Tensor) -> None:
        """Count tensors that existed before."""
        for tensor in tensors:
            self._count(tensor)

    def reset_peak(self) -> None:
        self.peak = self.live

    def __enter__(self) -> "LiveTensorBytes":
        counted, resize = self, self._resize

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            counted._count_storage(storage)
            return result

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        inner = getattr(tensor, "_local_tensor", tensor)
        if inner.device.type != "meta":
            self._count_storage(inner.untyped_storage())

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._drop, key)
        self.live += storage.nbytes() - self._sizes.get(key, 0)
        self._sizes[key] = storage.nbytes()
        self.peak = max(self.peak, self.live)

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)
