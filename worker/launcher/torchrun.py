"""torchrun as a child process: its command, its environment, and the signals that it ignores."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.launch import LaunchDocument
from worker.core import processes
from worker.core.processes import WRAPPED_VARIABLE, usable_processors
from worker.environment.prepare import names_environment
from worker.environment.rank_command import RANK_ENVIRONMENT_VARIABLE
from worker.launcher.nodes import AttemptContext
from worker.launcher.start import PROGRAM, WaitingTorchrun, before_exec, import_variables

SHUTDOWN_SECONDS = 60
NSYS = "nsys"
RENDEZVOUS = "trainyard"
"""The name of our rendezvous among torchrun's."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SCRIPT_SECONDS = 10
"""A script's ranks ignore the signal with which torchrun ends the peers of a failed rank."""
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Two names of the same setting. If both are set, torch ignores one of them or raises an error."""
_RECORDED_COLLECTIVES = 2000


def start(
    context: AttemptContext, execution: int, variables: Mapping[str, str], waiting: WaitingTorchrun | None = None
) -> subprocess.Popen[bytes]:
    """Start torchrun. Must be called before any thread exists, since Python code runs between fork and exec.

    Args:
        variables: Variables of the ranks alone; torchrun reads them as JSON from its standard input, a file in memory.
        waiting: A process that has imported torchrun.
    """
    layout, launch, node = context.layout, context.launch, context.node
    defaults = gpu_environment(launch, layout.root, os.environ)
    if defaults:
        # torch's flight recorder does not create the folder of its files.
        RunLayout(layout.root.parent.parent).flight_records(layout.root.name).mkdir(parents=True, exist_ok=True)
    own = environment(launch, execution, {**defaults, **os.environ})
    if names_environment(launch):
        own[RANK_ENVIRONMENT_VARIABLE] = str(layout.rank_environment(node.index))
    arguments, stdin = command(context, execution), json.dumps(variables).encode()
    log = layout.node_log(node.index)
    if waiting is not None and waiting.begin(arguments, own, launch.umask, log, stdin):
        return waiting.process
    with log.open("ab") as output, os.fdopen(os.memfd_create("variables"), "w+b") as stdin_file:
        stdin_file.write(stdin)
        stdin_file.seek(0)
        return subprocess.Popen(
            [sys.executable, *PROGRAM, *arguments],
            env=own,
            stdin=stdin_file,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=before_exec(),
        )


def files_prefix(attempt: Path, node: int) -> str:
    """Return the beginning of the name of the folder that torchrun makes for its files, among temporary files."""
    return f"trainyard-torchrun-{hashlib.sha256(os.fsencode(attempt)).hexdigest()[:8]}-{node}-"


def remove_files(attempt: Path, node: int) -> None:
    """Remove the files of a torchrun that has ended. One that was killed leaves them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{files_prefix(attempt, node)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def command(context: AttemptContext, execution: int) -> list[str]:
    """Return the arguments of `elastic`: the same on every node but for its index and address."""
    layout, launch, node = context.layout, context.launch, context.node
    return [
        *(str(layout.root), str(node.index), node.scheduler_id),
        *("--nnodes", str(node.count)),
        *("--nproc-per-node", str(launch.processes_per_node)),
        *("--rdzv-backend", RENDEZVOUS),
        *("--rdzv-id", f"{launch.attempt_id}-{execution}"),
        *("--local-addr", node.address),
        *("--max-restarts", str(launch.max_restarts)),
        *("--signals-to-handle", "SIGINT"),
        *("--monitor-interval", "0.1"),
        *_program(layout, launch),
    ]


def _program(layout: AttemptLayout, launch: LaunchDocument) -> list[str]:
    """Return the command of a rank, with nsys around it if the spec profiles with nsys."""
    rank = ["-m", "worker", str(layout.root)]
    if not uses_nsys(launch):
        return rank
    folder = RunLayout(layout.root.parent.parent).profiles
    folder.mkdir(parents=True, exist_ok=True)
    capture = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if launch.spec.backend == "nccl" else []
    nsys = [NSYS, "profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true", *capture]
    return ["--no-python", *nsys, "--output", f"{folder}/nsys-rank-%q{{RANK}}", sys.executable, *rank]


def uses_nsys(launch: LaunchDocument) -> bool:
    """Return whether each rank is a child of nsys, which runs between torchrun and the rank."""
    return launch.spec.profile is not None and launch.spec.profile.nsys


def signalled_processes(launch: LaunchDocument, torchrun: int) -> list[int]:
    """Return the processes to signal at a stop: the ranks, and descendants of nsys or a command. Those programs need
    not forward signals themselves."""
    if uses_nsys(launch) or launch.spec.runs_command:
        return [pid for pid, _ in processes.descendants(torchrun)]
    return [*processes.children(torchrun), *processes.forked_ranks(torchrun).values()]


def unsupported(launch: LaunchDocument) -> str | None:
    """Return why this node cannot run the spec, or None if it can."""
    if uses_nsys(launch) and shutil.which(NSYS) is None:
        return f"profile.nsys is set, but {socket.gethostname()} has no program `{NSYS}` on its PATH"
    return None


def environment(launch: LaunchDocument, execution: int, base: dict[str, str]) -> dict[str, str]:
    """Return the environment of torchrun and, with the variables of the spec in addition, of the ranks."""
    ranks = launch.processes_per_node
    cores = usable_processors()
    variables = {
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        # Waiting threads must not spin: on a shared machine, spinning threads made steps ten times slower.
        "OMP_WAIT_POLICY": "passive",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(
            SCRIPT_SECONDS if launch.spec.task_kind.runs_program else SHUTDOWN_SECONDS
        ),
        **base,
        "TRAINYARD_EXECUTION": str(execution),
    }
    variables |= import_variables(variables)
    if uses_nsys(launch):
        variables[WRAPPED_VARIABLE] = "1"
    # This replaces the node's own values. The spec's variables are added in the ranks, and replace it.
    if interface := _interface(launch):
        variables |= dict.fromkeys(_INTERFACES, interface)
    return variables


def _interface(launch: LaunchDocument) -> str | None:
    """Return the network interface between the ranks; None: gloo and nccl choose."""
    if launch.nodes > 1:
        return launch.network_interface or None
    # Hosts of the network then cannot connect to the ranks. Besides, gloo would resolve this host's name, which fails
    # on machines without a DNS or hosts entry.
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)


def gpu_environment(launch: LaunchDocument, attempt: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to the spec's and to `base`, which take precedence. Without NCCL there are none; a
    script's program chooses them itself.

    Args:
        attempt: The folder of the attempt.
        base: The environment of the launcher.
    """
    if launch.spec.backend != "nccl":
        return {}
    records = RunLayout(attempt.parent.parent).flight_records(attempt.name)
    present = {*base, *launch.spec.environment.variables}
    variables = {
        "TORCH_FR_BUFFER_SIZE": str(_RECORDED_COLLECTIVES),
        # torch appends the number of the rank.
        "TORCH_FR_DUMP_TEMP_FILE": str(records / "rank_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if not present.intersection(_ALLOCATOR):
        # Segments that grow lose less memory to fragmentation, as with rows of different lengths.
        variables[_ALLOCATOR[0]] = "expandable_segments:True"
    return {name: value for name, value in variables.items() if name not in present}
