"""What a save copies before training goes on: this rank's share of the state, into buffers that are used again."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

StateDict = dict[str, Any]


def build_stager(device: torch.device) -> DefaultStager:
    """Copies before it returns, and keeps its buffers: only the first save pays for fresh memory.

    Copying beside the next step is not safe: on CPU it saved values of the step that had begun.
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
    """The state without the whole tensors that another rank writes; shards stay where they are.

    Every rank holds the same whole tensors under the same names, and so comes to the same division: the largest first,
    each to the rank that has least.
    """
    if world == 1:
        return state
    writers = _writers({**_whole(state["model"], "model"), **_whole(state["optimizer"], "optimizer")}, world)
    return {
        **state,
        **{
            part: {name: value for name, value in state[part].items() if writers.get((part, name), rank) == rank}
            for part in ("model", "optimizer")
        },
    }


def _whole(tensors: Mapping[str, Any], part: str) -> dict[tuple[str, str], int]:
    return {
        (part, name): value.nbytes
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
    }


def _writers(sizes: Mapping[tuple[str, str], int], world: int) -> dict[tuple[str, str], int]:
    loads = [0] * world
    found = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = loads.index(min(loads))
        loads[found[name]] += sizes[name]
    return found
