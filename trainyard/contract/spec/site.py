"""The site: everything outside a spec that its resolution depends on."""

from dataclasses import dataclass
from typing import Literal

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.spec.sbatch_options import DEFAULT_OPTIONS


@dataclass(frozen=True)
class Site:
    """The limits and capabilities that the settings and the cluster snapshot imply for a spec."""

    accelerator: Literal["cpu", "cuda"] | None = "cpu"
    """The accelerator of the ranks. None: not known yet."""
    scheduler: Literal["local", "slurm"] = "local"
    slots: int | None = None
    """Number of ranks that the local scheduler can run at once. None: no limit applies."""
    gpus_per_node: int | None = None
    """Slurm only: default of `resources.gpus_per_node`. None: all ranks on the same node."""
    roots: tuple[str, ...] = ("/",)
    """Folders that a spec may read models and data from."""
    runs: str | None = None
    """The runs directory, if it is a root. In a job's folder there, a spec may read only the results of the job."""
    readable_jobs: tuple[str, ...] | None = None
    """The jobs whose results a spec may read in the runs directory, if its user does not see all jobs. None: all."""
    excluded_roots: tuple[str, ...] = ()
    """Files and folders below the roots that a spec may not read, such as the service's state folder."""
    sbatch_options: frozenset[str] = frozenset(DEFAULT_OPTIONS)
    """Slurm only: the names that `resources.options` may have."""
    fixed_options: frozenset[str] = frozenset()
    """Slurm only: the sbatch options that the administrator sets for every job."""
    container_runtime: ContainerRuntime | None = None
    """The program that starts containers on the nodes. None: no spec may name a container."""
    container_images: tuple[str, ...] = ()
    """Patterns of the image references that a spec may name."""
    partition_limit_minutes: int | None = None
    """The time limit of the partition for a job that sets none. None: no limit, or not known."""
    emulates_gpus: bool = False
    """Accept options on CPUs that their ranks only emulate, for tests: precision `fp8`, and activations in host
    memory."""

    @property
    def allowed_roots(self) -> AllowedRoots:
        """Where models and data may be."""
        return AllowedRoots(allowed=self.roots, excluded=self.excluded_roots, runs=self.runs)
