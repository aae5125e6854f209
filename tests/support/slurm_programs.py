"""Programs that replace Slurm's commands: fixed output, and a log of the calls."""

import os
from collections.abc import Sequence
from pathlib import Path

from service.scheduler.slurm.sinfo import WIDE_FORMAT

SBATCH_SECONDS = 0.045
"""The time of one sbatch on the lab's controller."""


def install_programs(folder: Path, squeue_lines: Sequence[str], *, nodes: int, sbatch: str = "false") -> Path:
    """Put the programs first on PATH.

    Args:
        squeue_lines: The output of squeue, without the marker of each line.
        sbatch: The shell commands of sbatch.

    Returns:
        The log, with the name of a command in each line.
    """
    folder.mkdir()
    call_log, answer, node_list = folder / "call_log", queue_file(folder), folder / "nodes"
    call_log.touch()
    answer.write_text("".join(f"{line}\n" for line in squeue_lines))
    cells = ("gpu*", "up", "1-00:00:00", "", "mixed", "1-infinite", "all", "gpu:a100:8(S:0-1)", "gpu:a100:3(IDX:0-2)")
    widths = [int(part.split(":")[1]) for part in WIDE_FORMAT.removeprefix("--Format=").split(",")]
    rows = ([*cells[:3], f"node{n}", *cells[4:]] for n in range(nodes))
    node_list.write_text("".join("".join(map(str.ljust, row, widths)) + "\n" for row in rows))
    squeue_body = f'for a; do case $a in --format=*) m=${{a#--format=}};; esac; done; sed "s/^/${{m%%|*}}|/" {answer}'
    bodies = {"squeue": squeue_body, "sacct": "true", "scancel": "true", "sbatch": sbatch, "sinfo": f"cat {node_list}"}
    for name, body in (bodies | dict.fromkeys(("srun", "scontrol", "sacctmgr"), "true")).items():
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {call_log}\n{body}\n")
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return call_log


def queue_file(folder: Path) -> Path:
    """The file whose lines squeue prints."""
    return folder / "answer"


def accepting_sbatch(folder: Path) -> str:
    """The commands of an sbatch that takes its usual time, and adds the job to the queue as a pending one."""
    row = f"$$|PENDING|N/A|N/A|gpu|1|{os.getuid()}||Resources|$PWD|$name"
    return (
        f'for file; do :; done; name=$(sed -n "s/^#SBATCH --job-name=//p" "$file"); sleep {SBATCH_SECONDS}\n'
        f'echo "{row}" >> {queue_file(folder)}; echo "Submitted batch job $$"'
    )
