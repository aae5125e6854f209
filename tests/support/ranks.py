"""Ranks for tests of the engine in one process."""

from typing import cast

import torch
from torch.distributed import ProcessGroup

from worker.core.distributed import Ranks


def single_rank() -> Ranks:
    """Return the only rank of a run on the CPU, without process groups, which one rank never uses."""
    group = cast(ProcessGroup, None)
    return Ranks(rank=0, world=1, local_rank=0, device=torch.device("cpu"), bookkeeping=group, checkpoints=group)
