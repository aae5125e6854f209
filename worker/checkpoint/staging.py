"""Staging: a save copies this rank's share of the state into reused buffers before training goes on."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

StateDict = dict[str, Any]

SHARED_PARTS = ("model", "low_halves", "optimizer", "ema")
"""Parts of a state whose replicated tensors are written by one rank each."""


def build_stager(device: torch.device) -> DefaultStager:
    """Return a stager that copies before it returns and reuses its buffers, so only the first save allocates.

    Copying concurrently with the next step is not safe: on CPU it saved values of that step.
    """
    accelerated = device.type == "cuda"
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=accelerated,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=accelerated,
        )
    )


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
