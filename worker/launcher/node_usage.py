"""Processors, memory, disk and network that a node and its ranks use, from Linux's /proc. No torch.

Rates cover the time between two readings; the first reading has none. Values that cannot be read are left out.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.core import processes

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True)
class _Reading:
    """Counters that only grow, and the time in seconds at which they were read."""

    time: float
    busy: int
    """Ticks in which a processor of the node worked."""
    total: int
    received: int
    sent: int
    ranks: Mapping[int, Mapping[int, int]]
    """Ticks of each process of a rank, by rank and pid."""


@dataclass
class NodeUsage:
    """Reads the usage of this node and of the ranks below torchrun."""

    torchrun: int
    """The pid of torchrun, whose children are the ranks."""
    run_folder: Path
    proc: Path = _PROC
    now: Callable[[], float] = time.monotonic
    _last: _Reading | None = field(default=None, init=False)

    def read(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
        """Return the values of the node, and the values of each rank."""
        memory, ticks = self._rank_processes()
        reading = _Reading(self.now(), *self._processor_ticks(), *self._network_bytes(), ticks)
        last, self._last = self._last, reading
        node = {**self._memory(), **self._disk()}
        ranks = {rank: {"rss_bytes": float(size)} for rank, size in memory.items()}
        if last and (seconds := reading.time - last.time) > 0:
            if reading.total > last.total:
                node["cpu_percent"] = 100.0 * max(0, reading.busy - last.busy) / (reading.total - last.total)
            node["network_received_bytes_per_second"] = max(0, reading.received - last.received) / seconds
            node["network_sent_bytes_per_second"] = max(0, reading.sent - last.sent) / seconds
            for rank, values in ranks.items():
                before = last.ranks.get(rank, {})
                # Ticks of ended processes are gone; a new process starts at 0.
                used = sum(max(0, count - before.get(pid, 0)) for pid, count in reading.ranks[rank].items())
                values["cpu_percent"] = 100.0 * used / _TICKS / seconds
        return node, ranks

    def _processor_ticks(self) -> tuple[int, int]:
        """Return the ticks in which processors worked, and all ticks of all processors."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            with (self.proc / "stat").open() as file:
                counts = [int(value) for value in file.readline().split()[1:9]]
            idle = counts[3] + counts[4]
            return sum(counts) - idle, sum(counts)
        return 0, 0

    def _memory(self) -> dict[str, float]:
        with contextlib.suppress(OSError, ValueError, LookupError):
            lines = (self.proc / "meminfo").read_text().splitlines()[:8]
            sizes = {name: int(rest.split()[0]) * _KIB for name, _, rest in (line.partition(":") for line in lines)}
            total = sizes["MemTotal"]
            return {"memory_used_bytes": float(total - sizes["MemAvailable"]), "memory_total_bytes": float(total)}
        return {}

    def _disk(self) -> dict[str, float]:
        """Return the usage of the filesystem with the run's folder."""
        with contextlib.suppress(OSError):
            status = os.statvfs(self.run_folder)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            return {"disk_used_bytes": float(used), "disk_free_bytes": float(status.f_bavail * status.f_frsize)}
        return {}

    def _network_bytes(self) -> tuple[int, int]:
        """Return the bytes that all interfaces but the loopback received and sent."""
        received = sent = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (self.proc / "net" / "dev").read_text().splitlines()[2:]:
                name, _, rest = line.partition(":")
                counts = rest.split()
                if name.strip() != "lo":
                    received, sent = received + int(counts[0]), sent + int(counts[8])
        return received, sent

    def _rank_processes(self) -> tuple[dict[int, int], dict[int, dict[int, int]]]:
        """Return the resident bytes of each rank with its processes, and the ticks of each process."""
        memory: dict[int, int] = {}
        ticks: dict[int, dict[int, int]] = {}
        for rank, pid in processes.ranks_below(self.torchrun).items():
            for one in [pid, *(below for below, _ in processes.descendants(pid))]:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = (self.proc / str(one) / "stat").read_text().rpartition(")")[2].split()
                    ticks.setdefault(rank, {})[one] = int(fields[11]) + int(fields[12])
                    memory[rank] = memory.get(rank, 0) + int(fields[21]) * _PAGE
        return memory, ticks
