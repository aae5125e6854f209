"""Process groups: one for training, one for bookkeeping, one for checkpoints."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError


@dataclass(frozen=True)
class Ranks:
    """Where this process stands, and the groups it talks in."""

    rank: int
    world: int
    local_rank: int
    device: torch.device
    bookkeeping: dist.ProcessGroup
    """gloo: stop flags, logged sums, verdicts. Never the training group, whose collectives run asynchronously."""
    checkpoints: dist.ProcessGroup
    """gloo: used from the saving thread alone."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's values, by rank, in double precision. A collective."""
        if self.world == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(rows, own, group=self.bookkeeping)
        return [row.tolist() for row in rows]

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank. A collective."""
        if self.world == 1:
            return flag
        tensor = torch.tensor([int(flag)], dtype=torch.int32)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.bookkeeping)
        return bool(tensor.item())

    def from_first(self, value: int) -> int:
        """Rank 0's value, on every rank. A collective."""
        tensor = torch.tensor([value], dtype=torch.int64)
        if self.world > 1:
            dist.broadcast(tensor, 0, group=self.bookkeeping)
        return int(tensor.item())

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.bookkeeping)


def join(spec: TrainingSpec) -> Ranks:
    """Join the process group that torchrun describes in the environment."""
    # The watchdog names the rank that is behind; a collective that gives up by itself would only blame its peers.
    patience = timedelta(minutes=2 * (spec.health.stall_timeout_minutes or 0) + 60)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if spec.backend == "nccl":
        device = _gpu(local_rank)
    dist.init_process_group(_backend(spec), timeout=patience)
    if dist.get_world_size() != int(os.environ["WORLD_SIZE"]):
        raise RefusedError(
            f"backend `{spec.backend}` made a group of {dist.get_world_size()} of the {os.environ['WORLD_SIZE']} ranks",
            "MPI joins only ranks that mpirun started, and these are torchrun's; take `nccl` or `gloo`.",
        )
    return Ranks(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        local_rank=local_rank,
        device=device,
        bookkeeping=_gloo(patience),
        checkpoints=_gloo(patience),
    )


def _backend(spec: TrainingSpec) -> str:
    """As torch names it.

    Raises:
        RefusedError: this build of torch has no MPI.
    """
    if spec.backend == "mpi" and not dist.is_mpi_available():
        raise RefusedError("backend `mpi` is not part of this build of torch", "Take `nccl` or `gloo`.")
    if spec.backend == "nccl" and spec.fsdp.cpu_offload:
        # What lies in the host's memory is summed there: the norm of the gradients.
        return "cpu:gloo,cuda:nccl"
    return spec.backend


def _gpu(local_rank: int) -> torch.device:
    """The rank's own, which torch uses from now on.

    Raises:
        RefusedError: this build of torch knows no GPU.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise RefusedError(
            f"the job runs on GPUs, and the torch of its Python ({torch.__version__}) was built without CUDA",
            "Install one with CUDA where the workers run; on a machine without a GPU set TRAINYARD_ACCELERATOR=cpu.",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def leave() -> None:
    """After a barrier, so that no rank tears down what another still uses."""
    dist.destroy_process_group()


def _gloo(patience: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=patience)
    assert isinstance(group, dist.ProcessGroup)
    return group
