"""Files in a node's memory that hold the memory checkpoints of its ranks.

torchrun's process creates two files for each rank, which have no name in any file system. The ranks open them through
that process, start after start. The kernel frees them when torchrun and the ranks have ended, however these ended.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FILES_VARIABLE = "TRAINYARD_MEMORY_FILES"
"""The variable with the paths of the files by rank, as JSON."""
MAX_LOADS = 2
"""Starts that may load one memory checkpoint. If the ranks fail as often after it, they start from the disk."""

_PER_RANK = 2
_WORD = 8
_PAGE = 4096
_MIB = 2**20
_RESERVED = 512
"""Bytes for the digest and for numbers that grow from one checkpoint to the next."""


class MemoryFile:
    """One checkpoint of one rank: two words with the length of the index and the number of loads, the index as JSON,
    and from `data_start` on the bytes of the tensors. Without a length there is no checkpoint."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: The file cannot be opened.
        """
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self._data_start = 0
        self.step = 0
        """The step of its checkpoint; 0 if it has none."""

    def begin(self, index: Mapping[str, Any], size: int) -> memoryview:
        """Discard the file's checkpoint, and return the memory for `size` bytes of a new one.

        Args:
            index: As for `commit`, to reserve its space.

        Raises:
            OSError: The node has too little memory.
        """
        self.step = 0
        if self._memory is not None:
            self._memory[:_WORD] = bytes(_WORD)
        needed = 2 * _WORD + len(json.dumps(index)) + _RESERVED
        self._data_start = -(-needed // _PAGE) * _PAGE
        total = self._data_start + size
        if self._memory is None or len(self._memory) != total:
            os.ftruncate(self._handle, 0)
            # A page that cannot be had when it is written to would kill the rank.
            os.posix_fallocate(self._handle, 0, total)
            self._memory = mmap.mmap(self._handle, total)
        return memoryview(self._memory)[self._data_start :]

    def digest(self) -> str:
        """Return the digest of the data."""
        return hashlib.sha256(self._data()).hexdigest()

    def commit(self, index: Mapping[str, Any], digest: str) -> None:
        """Complete the checkpoint of the data."""
        assert self._memory is not None
        text = json.dumps({**index, "data_start": self._data_start, "sha256": digest}).encode()
        self._memory[2 * _WORD : 2 * _WORD + len(text)] = text
        self._memory[_WORD : 2 * _WORD] = bytes(_WORD)
        self._memory[:_WORD] = len(text).to_bytes(_WORD, "little")
        self.step = index["step"]

    def read(self) -> dict[str, Any] | None:
        """Return the index of the complete checkpoint that may be loaded; None if there is none."""
        size = os.fstat(self._handle).st_size
        if not size:
            return None
        self._memory = mmap.mmap(self._handle, size)
        length, loads = self._word(0), self._word(1)
        if not length or loads >= MAX_LOADS:
            return None
        try:
            index: dict[str, Any] = json.loads(self._memory[2 * _WORD : 2 * _WORD + length])
            self._data_start, self.step = index["data_start"], index["step"]
        except (ValueError, KeyError, TypeError):
            return None
        return index

    def load(self, index: Mapping[str, Any]) -> memoryview | None:
        """Count a load, and return the data; None if they do not have the digest of the index."""
        assert self._memory is not None
        self._memory[_WORD : 2 * _WORD] = (self._word(1) + 1).to_bytes(_WORD, "little")
        return self._data() if self.digest() == index["sha256"] else None

    def _data(self) -> memoryview:
        assert self._memory is not None
        return memoryview(self._memory)[self._data_start :]

    def _word(self, number: int) -> int:
        assert self._memory is not None
        return int.from_bytes(self._memory[number * _WORD : (number + 1) * _WORD], "little")


@contextmanager
def created_files() -> Iterator["CreatedFiles"]:
    """Yield the files of this process's ranks, and close them at the end."""
    files = CreatedFiles()
    try:
        yield files
    finally:
        files.close()


class CreatedFiles:
    """The files of the ranks that this process starts. They last over all its starts."""

    def __init__(self) -> None:
        self._handles: dict[int, list[int]] = {}

    def variable(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the variable by which the ranks find their files; empty where the kernel has no such files."""
        try:
            for rank in ranks:
                if rank not in self._handles:
                    self._handles[rank] = [os.memfd_create(f"trainyard-{rank}") for _ in range(_PER_RANK)]
        except (OSError, AttributeError):
            return {}
        folder = f"/proc/{os.getpid()}/fd"
        paths = {rank: [f"{folder}/{handle}" for handle in handles] for rank, handles in self._handles.items()}
        return {FILES_VARIABLE: json.dumps(paths)}

    def close(self) -> None:
        for handle in (handle for handles in self._handles.values() for handle in handles):
            os.close(handle)
        self._handles = {}


def available_memory(
    environ: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    cgroups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return the bytes of memory that the processes of this job may still use on this node; 0 if it is unknown.

    Slurm may end a job above its limit without a limit of a cgroup, so the job's limit counts too.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        groups = (proc / "self" / "cgroup").read_text().splitlines()
    except (OSError, StopIteration):
        return 0
    left = [available, *_limit_of_job(environ)]
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            left += _left(cgroups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            left += _left(cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return max(0, min(left))


def _limit_of_job(environ: Mapping[str, str]) -> Iterator[int]:
    """Yield the limit of the job on this node. Zero stands for all memory."""
    with suppress(KeyError, ValueError):
        if limit := int(environ["SLURM_MEM_PER_NODE"]):
            yield limit * _MIB
    with suppress(KeyError, ValueError):
        if limit := int(environ["SLURM_MEM_PER_CPU"]):
            yield limit * int(environ["SLURM_CPUS_ON_NODE"]) * _MIB


def _left(root: Path, group: str, limit: str, usage: str) -> Iterator[int]:
    """Yield what the limits of a group and of the groups above it leave."""
    folder = root / group.lstrip("/")
    for level in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            # `max`, which is no number, stands for no limit.
            yield int((level / limit).read_text()) - int((level / usage).read_text())
        if level == root:
            break


def files_of(environ: Mapping[str, str], rank: int) -> list[MemoryFile]:
    """Return the files of this rank; none if it has none, or if they cannot be opened."""
    try:
        return [MemoryFile(Path(path)) for path in json.loads(environ[FILES_VARIABLE])[str(rank)]]
    except (KeyError, OSError):
        return []
