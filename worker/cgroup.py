"""What the kernel says of our group of processes: how many of them its out-of-memory killer has ended."""

import contextlib
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int:
    """Processes killed in this cgroup so far because it was out of memory; 0 where the kernel does not tell."""
    for path in _counters(membership, root):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _counters(membership: Path, root: Path) -> list[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(root / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
            # Inside a container the group's own folder may be mounted as the root.
            found.append(root / "memory" / "memory.oom_control")
    return found
