"""The site: everything outside a spec that its resolution depends on."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Site:
    """What the settings and the cluster snapshot imply for a spec."""

    accelerator: Literal["cpu", "cuda"] | None = "cpu"
    """What ranks compute on. None: not known yet."""
    scheduler: Literal["local", "slurm"] = "local"
    slots: int | None = None
    """Number of ranks that the local scheduler can run at once. None: no limit applies."""
    gpus_per_node: int | None = None
    """Slurm only: default of `resources.gpus_per_node`. None: all ranks on one node."""
    roots: tuple[str, ...] = ("/",)
    """Folders that a spec may read models and data from."""
    partition_limit_minutes: int | None = None
    """The time limit of the partition for a job that sets none. None: no limit, or not known."""
