"""Writes and loads memory checkpoints: each rank holds its own part of the state in its node's memory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from worker.checkpoint.memory_files import MemoryFile, files_of
from worker.core.distributed import Ranks

log = logging.getLogger(__name__)

StateDict = dict[str, Any]

_ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A memory checkpoint that all ranks have, and this rank's part of it."""

    step: int
    index: Mapping[str, Any]
    data: memoryview

    @property
    def sources(self) -> Mapping[str, str]:
        """The digests of the run's sources when it was written; on rank 0."""
        sources: dict[str, str] = self.index["sources"]
        return sources

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the type of every tensor by its name."""
        return {name: getattr(torch, dtype) for name, dtype, _, _ in self.index["tensors"]}

    def load(self, state: StateDict) -> None:
        """Fill the tensors of `state` in place.

        Raises:
            ValueError: The state has other tensors, which a start within the attempt cannot have.
        """
        stored = {name: (dtype, tuple(shape), start) for name, dtype, shape, start in self.index["tensors"]}
        own = dict(_local_tensors(state))
        if own.keys() != stored.keys():
            names = ", ".join(sorted(own.keys() ^ stored.keys())[:5])
            raise ValueError(f"the memory checkpoint of step {self.step} has other tensors: {names}")
        for name, tensor in own.items():
            dtype, shape, start = stored[name]
            if tuple(tensor.shape) != shape or str(tensor.dtype) != f"torch.{dtype}":
                raise ValueError(f"the memory checkpoint of step {self.step} has another shape or type of {name}")
            tensor.copy_(_view(self.data, start, tensor))


def open_files(environ: Mapping[str, str], ranks: Ranks) -> list[MemoryFile]:
    """Return the files of this rank's memory checkpoints; none if a rank has none. A collective."""
    files = files_of(environ, ranks.rank)
    return [] if ranks.any(not files) else files


def find_newer(step: int, ranks: Ranks, files: Sequence[MemoryFile]) -> MemoryCheckpoint | None:
    """Return the newest memory checkpoint that all ranks have; None if none is newer than `step`. A collective.

    Args:
        files: Of this rank.
    """
    indexes = {
        index["step"]: (file, index)
        for file in files
        if (index := file.read()) is not None and index["world"] == ranks.world and index["step"] > step
    }
    # As many values on every rank; no step is 0.
    rows = ranks.gather([*sorted(indexes), *[0] * (2 - len(indexes))])
    common = {int(step) for step in rows[0]}.intersection(*({int(step) for step in row} for row in rows)) - {0}
    for common_step in sorted(common, reverse=True):
        file, index = indexes[common_step]
        data = file.load(index)
        if not ranks.any(data is None):
            assert data is not None
            return MemoryCheckpoint(common_step, index, data)
        log.warning("the memory checkpoint of step %d is damaged", common_step)
    return None


@dataclass(frozen=True)
class MemoryWriter:
    """Writes this rank's part of memory checkpoints, each to the file with the oldest."""

    files: Sequence[MemoryFile]
    world: int

    def copy(self, step: int, state: StateDict, sources: Mapping[str, str]) -> "Copied":
        """Copy the tensors. They may change afterwards.

        Raises:
            OSError: The node has too little memory.
        """
        tensors, size = list(_local_tensors(state)), 0
        entries = []
        for name, tensor in tensors:
            entries.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        index = {"step": step, "world": self.world, "sources": dict(sources), "tensors": entries}
        file = min(self.files, key=lambda file: file.step)
        data = file.begin(index, size)
        for (_, tensor), (*_, start) in zip(tensors, entries, strict=True):
            _view(data, start, tensor).copy_(tensor)
        return Copied(file, index)


@dataclass(frozen=True)
class Copied:
    """A copied state that is not a checkpoint yet."""

    file: MemoryFile
    index: Mapping[str, Any]

    def digest(self) -> str:
        """Return the digest for `commit`, which takes a second for some GiB."""
        return self.file.digest()

    def commit(self, digest: str) -> None:
        """Make it the rank's newest checkpoint."""
        self.file.commit(self.index, digest)


def size_of(state: StateDict) -> int:
    """Return the bytes of this rank's part of a state."""
    return sum(tensor.nbytes for _, tensor in _local_tensors(state))


def _local_tensors(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield this rank's tensors of a state with the names that checkpoints on disk give them."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _local_tensors(value, f"{prefix}{name}.")
        else:
            local = value.to_local() if isinstance(value, DTensor) else value
            yield f"{prefix}{name}", local.detach()


def _view(data: memoryview, start: int, like: torch.Tensor) -> torch.Tensor:
    """Return the part of `data` that holds a tensor of this type and shape."""
    if not like.numel():
        return torch.empty_like(like, device="cpu")
    return torch.frombuffer(data, dtype=like.dtype, count=like.numel(), offset=start).view(like.shape)
