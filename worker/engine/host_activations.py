"""Stores activations in host memory from the forward to the backward.

On a GPU the copies run in a stream of their own, beside the computation, to and from pinned memory. Device memory
is allocated and freed in the order of the computing stream, which waits for each copy before the memory is used
again: at most two tensors are on the device, however far the host is ahead of it.
"""

import contextlib
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(eq=False)
class HostTensor:
    """A tensor in host memory."""

    values: torch.Tensor
    before: "weakref.ref[HostTensor] | None"
    """The tensor that was stored before it, if that still exists."""
    on_device: torch.Tensor | None = None
    """The copy on the device, as soon as that was started."""
    copied: Any = None
    """The event in the stream of copies after that copy."""


class HostActivations:
    """Stores the inputs of successive layers on the host.

    The backward uses them in the opposite order; when it uses a tensor, the copy of the previous tensor starts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if gpu else None  # type: ignore[no-untyped-call]
        self._last: weakref.ref[HostTensor] | None = None
        self._leaving: tuple[torch.Tensor, Any] | None = None
        """The tensor that is being copied to the host, and the event after that."""

    def storing(self, tensors: tuple[torch.Tensor, ...]) -> AbstractContextManager[object]:
        """Return the context of a forward in which `tensors` are stored on the host if autograd saves them. It saves
        others as usual."""
        addresses = {tensor.data_ptr() for tensor in tensors if tensor.numel()}

        def pack(tensor: torch.Tensor) -> torch.Tensor | HostTensor:
            return self._store(tensor) if tensor.numel() and tensor.data_ptr() in addresses else tensor

        def unpack(saved: torch.Tensor | HostTensor) -> torch.Tensor:
            return self._load(saved) if isinstance(saved, HostTensor) else saved

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _store(self, tensor: torch.Tensor) -> HostTensor:
        self._finish_leaving()
        values = torch.empty_like(tensor, device="cpu", pin_memory=self._copies is not None)
        with self._copying():
            values.copy_(tensor, non_blocking=True)
        self._leaving = tensor, self._record()
        stored = HostTensor(values, self._last)
        self._last = weakref.ref(stored)
        return stored

    def _load(self, stored: HostTensor) -> torch.Tensor:
        self._finish_leaving()
        self._start_return(stored)
        self._wait_for(stored.copied)
        tensor, stored.on_device = stored.on_device, None
        assert tensor is not None
        before = stored.before() if stored.before is not None else None
        if before is not None:
            self._start_return(before)
        return tensor

    def _start_return(self, stored: HostTensor) -> None:
        if stored.on_device is not None:
            return
        stored.on_device = torch.empty_like(stored.values, device=self._device)
        with self._copying():
            stored.on_device.copy_(stored.values, non_blocking=True)
        stored.copied = self._record()

    def _finish_leaving(self) -> None:
        if self._leaving is not None:
            self._wait_for(self._leaving[1])
            self._leaving = None

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        """Return the context of a copy, in the stream of copies, after all computations so far."""
        if self._copies is None:
            yield
            return
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            yield

    def _record(self) -> Any:
        return self._copies.record_event() if self._copies is not None else None

    def _wait_for(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)
