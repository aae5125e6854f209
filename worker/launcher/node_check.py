"""Checks and preparation of a node before torchrun starts. A failed check ends the attempt before its ranks start.

The checks of `node_problem` take at most a second. No other checks are needed. Without the run directory or the
interpreter this code does not run, and Slurm's end of the attempt names the node. Without a route to the service the
ranks train, and their reports arrive later.
"""

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord
from worker.launcher import exit_record, gpu_probe, torchrun
from worker.launcher.claim import ClaimResult, missing_secrets
from worker.launcher.code import await_work, prepare_code
from worker.launcher.environment import prepare_environment
from worker.launcher.nodes import AttemptContext

SECONDS = 1.0
"""Seconds to wait for the driver. A later answer is no failure: the driver may have to be loaded first."""
_BLOCK = b"x" * 4096
log = logging.getLogger(__name__)


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


def reject_claimed(context: AttemptContext, claimed: ClaimResult) -> FinishRecord | None:
    """On node 0, return the exit record if the claimed attempt cannot run; it is already written."""
    layout, launch = context.layout, context.launch
    if reason := missing_secrets(launch, claimed):
        log.error("%s", reason)
        write = exit_record.rejected if claimed.known_to_service else exit_record.not_started
        return write(layout, claimed.execution, reason, type_="SecretsError")
    return prepare_code(layout, launch, claimed.execution) or reject_node(context, claimed.execution)


def reject_node(context: AttemptContext, execution: int) -> FinishRecord | None:
    """On every node, return the exit record if this node cannot run the spec; it is already written."""
    layout, launch = context.layout, context.launch
    if reason := torchrun.unsupported(launch):
        log.error("%s", reason)
        return exit_record.rejected(layout, execution, reason)
    # The local backend has no other machine.
    name = os.environ.get("SLURMD_NODENAME")
    if name and (problem := node_problem(launch, os.environ)) is not None:
        log.error("%s", problem)
        return exit_record.node_not_ready(layout, execution, name, problem)
    if launch.spec.task_kind.runs_program and not await_work(layout):
        message = f"did not start: {socket.gethostname()} does not see {layout.work} as node 0 does"
        log.error("%s", message)
        return exit_record.not_started(layout, execution, message, type_="StaleFolder")
    return prepare_environment(context, execution)
