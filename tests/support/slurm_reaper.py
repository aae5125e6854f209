"""Outlives a lab whose tests were killed, for as long as it takes to end what Slurm had started and to remove the rest.

Slurm's daemons die with the tests, but a slurmstepd and what it runs do not: they belong to nobody by then.
"""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil

DAEMON_VARIABLE = "TRAINYARD_LAB_DAEMON"
"""Names a lab's daemon (a node's slurmd by the node) in its environment, which slurmstepd inherits."""
_BY_SLURM = (f"{DAEMON_VARIABLE}=".encode(), b"SLURM_JOB_ID=", b"SLURMD_NODENAME=")
"""The environment of daemons and of what runs in a job. Shells in which a user only named the configuration have none
of these."""


def cluster_processes(conf: Path, node: str = "") -> list[psutil.Process]:
    """Return the processes that the cluster of this configuration has started (on one node), and their descendants."""
    own = psutil.Process().pid
    daemon = f"{DAEMON_VARIABLE}={node}".encode()
    processes: dict[int, psutil.Process] = {}
    sockets = _sockets_below(conf.parent / "spool" / node)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # psutil stops at an empty entry, which slurmstepd leaves when it sets its title.
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            here = not node or not {f"SLURMD_NODENAME={node}".encode(), daemon}.isdisjoint(environ)
            by_slurm = any(entry.startswith(_BY_SLURM) for entry in environ)
            is_ours = f"SLURM_CONF={conf}".encode() in environ and by_slurm and here
            if process.pid != own and (is_ours or _is_step(process.pid, sockets)):
                processes[process.pid] = process
                processes.update({child.pid: child for child in process.children(recursive=True)})
    return list(processes.values())


def _sockets_below(folder: Path) -> set[str]:
    """Return the names, as in /proc/PID/fd, of the sockets that are bound below a folder."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {f"socket:[{line[6]}]" for line in lines if len(line) == 8 and line[7].startswith(f"{folder}/")}


def _is_step(pid: int, sockets: set[str]) -> bool:
    """Whether a process serves one of these sockets. The slurmstepd of Slurm 24.11 has an empty environment."""
    return bool(sockets) and any(os.readlink(entry) in sockets for entry in os.scandir(f"/proc/{pid}/fd"))


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def main(conf: Path) -> None:
    """Wait until the parent process closes this process's standard input, then clean up."""
    sys.stdin.buffer.read()
    kill(cluster_processes(conf))
    shutil.rmtree(conf.parent, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
