"""Process groups for training, bookkeeping and checkpoints."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.core.group_store import open_store


@dataclass(frozen=True)
class Ranks:
    """This rank, its device, and its process groups."""

    rank: int
    world: int
    local_rank: int
    device: torch.device
    bookkeeping: dist.ProcessGroup
    """A gloo group for flags and logged sums. It is never the training group, whose collectives run asynchronously."""
    checkpoints: dist.ProcessGroup
    """A gloo group that only the saving thread uses."""

    @property
    def is_rank_0(self) -> bool:
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's values, by rank, in fp64. A collective that does not wait for the device."""
        return self.begin_gather(values).read()

    def begin_gather(self, values: Sequence[float]) -> "Gather":
        """Begin the same gather without waiting for the other ranks, which may begin it later."""
        own = torch.tensor(values, dtype=torch.float64)
        if self.world == 1:
            return Gather([own], None)
        rows = [torch.empty_like(own) for _ in range(self.world)]
        return Gather(rows, dist.all_gather(rows, own, group=self.bookkeeping, async_op=True))

    def gather_text(self, text: str) -> list[str]:
        """Return every rank's text, by rank. A collective."""
        texts = [text] * self.world
        if self.world > 1:
            dist.all_gather_object(texts, text, group=self.bookkeeping)
        return texts

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the ranks, which stays on the device. A collective of the training group."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks, by rank: (ranks, n, ...) from (n, ...) in host memory, n being the same
        everywhere. A collective."""
        if self.world == 1:
            return rows[None]
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows, group=self.bookkeeping)
        return torch.stack(parts)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank. A collective."""
        if self.world == 1:
            return flag
        tensor = torch.tensor([int(flag)], dtype=torch.int32)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.bookkeeping)
        return bool(tensor.item())

    def from_rank_0(self, value: int) -> int:
        """Return rank 0's value on every rank. A collective."""
        tensor = torch.tensor([value], dtype=torch.int64)
        if self.world > 1:
            dist.broadcast(tensor, 0, group=self.bookkeeping)
        return int(tensor.item())

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of rank `source` on every rank. A collective; the value is pickled."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self.bookkeeping)
        return box[0]

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.bookkeeping)


@dataclass(frozen=True)
class Gather:
    """A gather that may be under way."""

    rows: list[torch.Tensor]
    work: dist.Work | None

    def read(self, timeout: timedelta | None = None) -> list[list[float]]:
        """Wait for the gather, and return every rank's values, by rank.

        Raises:
            RuntimeError: A rank has ended, or not all ranks have begun the gather within `timeout`.
        """
        if self.work is not None:
            self.work.wait(timeout) if timeout else self.work.wait()
        return [row.tolist() for row in self.rows]


def join(spec: TrainingSpec) -> Ranks:
    """Join the process group that torchrun describes in the environment.

    Raises:
        RefusedError: The backend or the GPU is not available.
    """
    # Longer than the stall timeout: the watchdog names the rank that is behind, a timed-out collective only its peers.
    timeout = timedelta(minutes=2 * (spec.health.stall_timeout_minutes or 0) + 60)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if spec.backend == "nccl":
        device = _gpu(local_rank)
    dist.init_process_group(
        _backend(spec),
        store=open_store(os.environ, timeout),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timeout,
    )
    if dist.get_world_size() != int(os.environ["WORLD_SIZE"]):
        raise RefusedError(
            f"backend `{spec.backend}` made a group of {dist.get_world_size()} of the {os.environ['WORLD_SIZE']} ranks",
            "MPI needs ranks that mpirun started, but torchrun starts these; use `nccl` or `gloo`.",
        )
    return Ranks(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        local_rank=local_rank,
        device=device,
        bookkeeping=_gloo(timeout),
        checkpoints=_gloo(timeout),
    )


def _backend(spec: TrainingSpec) -> str:
    """Return torch's name of the backend.

    Raises:
        RefusedError: This build of torch has no MPI.
    """
    if spec.backend == "mpi" and not dist.is_mpi_available():
        raise RefusedError("backend `mpi` is not part of this build of torch", "Use `nccl` or `gloo`.")
    if spec.backend == "nccl" and spec.fsdp.cpu_offload:
        # The norm of offloaded gradients is reduced in host memory.
        return "cpu:gloo,cuda:nccl"
    return spec.backend


def _gpu(local_rank: int) -> torch.device:
    """Return the rank's GPU and make it torch's current device.

    Raises:
        RefusedError: This build of torch has no CUDA.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise RefusedError(
            f"the job needs GPUs, but torch {torch.__version__} of the worker's Python was built without CUDA",
            "Install torch with CUDA for the workers; on a machine without a GPU set TRAINYARD_ACCELERATOR=cpu.",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def leave() -> None:
    """Destroy the process groups. Call after a barrier, so that no other rank still uses them."""
    dist.destroy_process_group()


def _gloo(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group
