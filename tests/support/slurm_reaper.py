"""Outlives a lab whose tests were killed, for as long as it takes to end what Slurm had started and to remove the rest.

Slurm's daemons die with the tests, but a slurmstepd and what it runs do not: they belong to nobody by then.
"""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def belonging(conf: Path, node: str = "") -> list[psutil.Process]:
    """Every process that was started under this configuration (on one node), and what those started."""
    own = psutil.Process().pid
    processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # psutil stops at an empty entry, which slurmstepd leaves where it has written its title.
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            here = not node or f"SLURMD_NODENAME={node}".encode() in environ
            if process.pid != own and f"SLURM_CONF={conf}".encode() in environ and here:
                processes[process.pid] = process
                processes.update({child.pid: child for child in process.children(recursive=True)})
    return list(processes.values())


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def main(conf: Path) -> None:
    """Wait for the end of whoever holds the other end of our standard input."""
    sys.stdin.buffer.read()
    kill(belonging(conf))
    shutil.rmtree(conf.parent, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
