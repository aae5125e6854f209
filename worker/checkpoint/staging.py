"""Staging: a save copies this rank's share of the state into reused buffers, beside the next forward and backward."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

StateDict = dict[str, Any]

SHARED_PARTS = ("model", "low_halves", "optimizer", "ema")
"""Parts of a state whose replicated tensors are written by one rank each."""


class OverlappedStager(AsyncStager):
    """Copies in a thread, on CUDA in a separate stream. Its buffers are reused, so only the first save allocates.

    The state must not change before `synchronize_staging` returns. The captured tensors change only in an update, so
    the copy takes place beside the forward and backward of the next step. Whatever changes at another time is captured
    as a copy.
    """

    _synchronize_after_execute = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # torch's own `DefaultStager` serves for a single save in torch 2.11, and with copies that do not block it ends
        # with a wait for all streams, the training's among them.
        self._copies = StateDictStager(pin_memory=device.type == "cuda", share_memory=False)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging")
        self._staged: Future[StateDict] | None = None

    def stage(self, state_dict: StateDict) -> "Future[StateDict]":
        """Begin to copy the state as it will be after the work that is in the device's current stream."""
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._staged = self._thread.submit(self._copy, state_dict)
        return self._staged

    def synchronize_staging(self) -> None:
        """Wait until the last state is copied. If the copy failed, the save fails too."""
        staged, self._staged = self._staged, None
        if staged:
            wait([staged])

    def close(self) -> None:
        """Free the buffers."""
        self._thread.shutdown()
        self._copies.close()  # type: ignore[no-untyped-call]

    def _copy(self, state: StateDict) -> StateDict:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            copied: StateDict = self._copies.stage(state, non_blocking=False)
        return copied


def writer_share(state: StateDict, rank: int, world: int) -> StateDict:
    """Return the state without the replicated tensors that another rank writes; shards stay.

    Every rank has the same replicated tensors and computes the same assignment: the largest first, each to the rank
    with the fewest bytes so far.
    """
    if world == 1:
        return state
    parts = [part for part in SHARED_PARTS if part in state]
    sizes: dict[tuple[str, str], int] = {}
    for part in parts:
        sizes |= _replicated_sizes(state[part], part)
    writers = _writers(sizes, world)
    return {
        **state,
        **{
            part: {name: value for name, value in state[part].items() if writers.get((part, name), rank) == rank}
            for part in parts
        },
    }


def _replicated_sizes(tensors: Mapping[str, Any], part: str) -> dict[tuple[str, str], int]:
    return {
        (part, name): value.nbytes
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
    }


def _writers(sizes: Mapping[tuple[str, str], int], world: int) -> dict[tuple[str, str], int]:
    loads = [0] * world
    writers = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writers[name] = loads.index(min(loads))
        loads[writers[name]] += sizes[name]
    return writers
