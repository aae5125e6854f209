"""Checks of a node before its ranks start. They take at most a second.

No other checks are needed. Without the run directory or the interpreter this code does not run, and Slurm's end of the
attempt names the node. Without a route to the service the ranks train, and their reports arrive later.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainyard.contract.wire.launch import LaunchDocument
from worker.launcher import gpu_probe

SECONDS = 1.0
"""Seconds to wait for the driver. A later answer is no failure: the driver may have to be loaded first."""
_BLOCK = b"x" * 4096


def node_problem(launch: LaunchDocument, environ: Mapping[str, str], library: str = gpu_probe.LIBRARY) -> str | None:
    """Return why no rank can run on this node; None if nothing is wrong, or the driver cannot tell."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(_BLOCK)
    except OSError as error:
        return f"its temporary folder {tempfile.gettempdir()} cannot be written: {error.strerror or error}"
    return _gpu_problem(launch.ranks_per_node, environ, library) if launch.accelerator == "cuda" else None


def _gpu_problem(needed: int, environ: Mapping[str, str], library: str) -> str | None:
    command = [sys.executable, "-I", str(Path(gpu_probe.__file__)), library]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        answer = process.communicate(timeout=SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        # Do not wait for the process: while it waits for a broken driver it cannot be killed.
        process.kill()
        return None
    if process.returncode != 0 or not answer:
        return None
    if not answer.isdecimal():
        return f"the driver of its GPUs does not work: {answer}"
    # A MIG instance is part of a GPU, and the driver counts whole GPUs.
    if int(answer) >= needed or "MIG" in environ.get("CUDA_VISIBLE_DEVICES", ""):
        return None
    return f"its driver has {answer} GPUs, and {needed} are needed"
