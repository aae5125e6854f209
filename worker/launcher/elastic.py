"""Runs torchrun in a separate process, which sets the spec's variables in the ranks alone and records their failures.

Run as `python -m worker.launcher.elastic <attempt folder> <node index> <scheduler id> <torchrun's arguments>`, or as a
process that waits for these arguments (`worker.launcher.start`). torchrun
only prints which signal killed which rank, and it forgets a failed start when it starts the ranks again.
"""

import importlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.process_start import speed_up_imports
from trainyard.script import RESUMED
from worker.checkpoint.memory_files import CreatedFiles, created_files
from worker.core.disk_space import ended_by_full_disk
from worker.core.processes import (
    PARENT_VARIABLE,
    RANK_VARIABLE,
    SOCKET_VARIABLE,
    STORE_VARIABLE,
    WRAPPED_VARIABLE,
    count_oom_kills,
)
from worker.core.program_output import has_output
from worker.core.rank_exits import RankExit, rank_exits_file, read_rank_exits
from worker.core.script_failures import are_final, read_tail, signature_of, with_tails
from worker.environment.containers.init_process import temporary_variable
from worker.environment.rank_command import RANK_ENVIRONMENT_VARIABLE
from worker.launcher.signed_folder import SignedFolder
from worker.launcher.start import WAIT, become_torchrun
from worker.launcher.torchrun import RENDEZVOUS, files_prefix
from worker.rank.fork_server import represented_by

_NO_FILE = "<N/A>"
"""torchrun's value where a rank wrote no error file."""


def main(layout: AttemptLayout, node: int, scheduler_id: str, arguments: list[str]) -> int:
    """Run torchrun and return its exit code. The variables of the ranks are JSON on the standard input."""
    variables = json.load(sys.stdin.buffer)
    with open(os.devnull, "rb") as devnull:
        os.dup2(devnull.fileno(), 0)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    launch = json.loads(layout.launch.read_bytes())
    # torchrun would otherwise leave the folder of the ranks' error files on the node.
    with TemporaryDirectory(prefix=files_prefix(layout.root, node)) as folder:
        if forks_ranks(launch["spec"], variables, os.environ):
            start_fork_server(Path(folder))
        with created_files() as files:
            return run_torchrun(layout, launch, node, scheduler_id, arguments, variables, Path(folder), files)


def forks_ranks(spec: Mapping[str, Any], variables: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether the ranks are forks of one process, which has this process's Python and environment.

    Args:
        spec: The resolved spec.
        variables: Variables of the ranks alone: a library may read them only while it is imported.
    """
    is_elsewhere = bool(spec["environment"]["container"]) or RANK_ENVIRONMENT_VARIABLE in environ
    is_alone = task_kind(spec["task"]).runs_program or WRAPPED_VARIABLE in environ
    return bool(spec["restart"].get("fork_ranks")) and not (variables or is_elsewhere or is_alone)


def memory_variable(spec: Mapping[str, Any], files: CreatedFiles, ranks: list[int]) -> dict[str, str]:
    """Return the variable by which the ranks find the files of their memory checkpoints; empty if they write none. A
    container has no access to the files of this process."""
    is_elsewhere = task_kind(spec["task"]).runs_program or spec["environment"]["container"]
    return {} if is_elsewhere or not spec["checkpoint"].get("memory_steps") else files.variable(ranks)


def start_fork_server(folder: Path) -> None:
    """Import what a training needs, and start the server of forks."""
    from worker.rank.fork_server import start
    from worker.rank.main import import_engine, main

    import_engine()
    if socket_path := start(folder, main):
        os.environ[SOCKET_VARIABLE] = str(socket_path)


def import_torchrun() -> None:
    """Import what `run_torchrun` needs."""
    importlib.import_module("torch.distributed.run")
    importlib.import_module("worker.launcher.rendezvous")


def run_torchrun(
    layout: AttemptLayout,
    launch: Mapping[str, Any],
    node: int,
    scheduler_id: str,
    arguments: list[str],
    variables: Mapping[str, str],
    folder: Path,
    files: CreatedFiles,
) -> int:
    """Run torchrun with our rendezvous, and return its exit code. Its files are in `folder`."""
    from torch.distributed.elastic.agent.server import local_elastic_agent
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    first_execution = int(os.environ["TRAINYARD_EXECUTION"])
    log_sizes: dict[int, int] = {}
    agent: Any = LocalElasticAgent
    # Every start and every end of the ranks goes through these two methods. torchrun has no public hooks for them.
    agent._start_workers = count_restarts(agent._start_workers)
    agent._monitor_workers = record_failures(
        agent._monitor_workers,
        lambda restart: rank_exits_file(layout, node, first_execution + restart),
        lambda restart: ended_finally(layout, first_execution + restart),
        lambda end: replace(
            end,
            pid=represented_by(folder, end.pid),
            command=launch["spec"].get("argv") or (),
            signature=signature_of(end, read_tail(layout.rank_log(end.rank), log_sizes.get(end.rank, 0))),
        ),
    )
    rendezvous_handler_registry.register(RENDEZVOUS, partial(create_rendezvous, layout, launch, node, scheduler_id))
    processes: Any = local_elastic_agent
    processes.start_processes = add_variables(
        processes.start_processes,
        # In containers, the first process makes the folder: runtimes read the variable themselves.
        variables if launch["spec"]["environment"]["container"] else {**temporary_variable(), **variables},
        lambda ranks: (
            before_start(layout, node, ranks, log_sizes)
            | store_variable(layout, launch, folder)
            | memory_variable(launch["spec"], files, ranks)
        ),
    )
    try:
        torchrun(["--log-dir", str(folder), *arguments])
    except ChildFailedError:
        return 1
    return 0


def add_variables(
    start: Callable[..., Any], variables: Mapping[str, str], on_start: Callable[[list[int]], Mapping[str, str]]
) -> Callable[..., Any]:
    """Wrap `start_processes`: add the variables to the environment of each rank. This process never has them.

    `on_start` gets the ranks of this node before they start, and returns more variables for them.
    """

    def start_with_variables(*, envs: Mapping[int, Mapping[str, str]], **arguments: Any) -> Any:
        more = on_start(sorted(int(env["RANK"]) for env in envs.values()))
        own = {local: {**env, **variables, **more, RANK_VARIABLE: env["RANK"]} for local, env in envs.items()}
        return start(envs=own, **arguments)

    return start_with_variables


def create_rendezvous(
    layout: AttemptLayout, launch: Mapping[str, Any], node: int, scheduler_id: str, parameters: Any
) -> Any:
    """Return the rendezvous of this node for torchrun's parameters."""
    from worker.launcher.rendezvous import NodeRendezvous

    count = parameters.max_nodes
    folder = SignedFolder.of_nodes(layout, scheduler_id) if count > 1 else None
    # The program's torch connects to the store, so it must be ours. Our own ranks do without a server where they can.
    is_program = task_kind(launch["spec"]["task"]).runs_program
    serves_ranks = is_program and RANK_ENVIRONMENT_VARIABLE not in os.environ
    return NodeRendezvous(parameters.run_id, node, count, parameters.local_addr, folder, serves_ranks)


def store_variable(layout: AttemptLayout, launch: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the variable that names the file in which the ranks of one node meet. Each start gets a new file.

    Args:
        folder: A folder of this node that other accounts cannot enter. The ranks of containers see only the run.
    """
    if launch["nodes"] > 1:
        return {}
    root = layout.root if launch["spec"]["environment"]["container"] else folder
    return {STORE_VARIABLE: str(root / f"store-{uuid4().hex}")}


def before_start(layout: AttemptLayout, node: int, ranks: list[int], log_sizes: dict[int, int]) -> dict[str, str]:
    """Record which ranks start, and return the variable by which they resume. All ranks must resume or none, so it is
    determined before the first of them can write a checkpoint.

    Args:
        log_sizes: Set to the sizes of the ranks' logs, which earlier starts have written to.
    """
    record_placement(layout, node, ranks)
    for rank in ranks:
        log = layout.rank_log(rank)
        log_sizes[rank] = log.stat().st_size if log.is_file() else 0
    folder = RunLayout(layout.root.parent.parent).checkpoints
    return {RESUMED: str(int((folder.is_dir() and any(folder.iterdir())) or has_output(layout)))}


def record_placement(layout: AttemptLayout, node: int, ranks: list[int]) -> None:
    """Write which ranks this node runs."""
    document = {"node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(), "ranks": ranks}
    try:
        write_atomic(layout.placement(node), json.dumps(document))
    except OSError as error:
        # Only `trainyard shell` and `trainyard exec` need the file.
        print(f"the ranks of this node cannot be recorded: {error}", file=sys.stderr)


def count_restarts(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_start_workers`: subtract every start after the first from the restarts that are left.

    torchrun subtracts it only on the node whose rank failed, so the nodes would number the same start differently.
    """
    starts = 0

    def start_and_count(agent: Any, group: Any) -> Any:
        nonlocal starts
        agent._remaining_restarts = max(0, min(agent._remaining_restarts, group.spec.max_restarts - starts))
        starts += 1
        return start(agent, group)

    return start_and_count


def record_failures(
    monitor: Callable[..., Any],
    path_of: Callable[[int], Path],
    is_final: Callable[[int], bool],
    complete: Callable[[RankExit], RankExit] = lambda end: end,
) -> Callable[..., Any]:
    """Wrap `_monitor_workers`: write a file for each start with failed ranks, and make no further start if it is final.

    `path_of` and `is_final` get the number of restarts. `complete` adds to the end of a rank.
    """
    killed_before = count_oom_kills()

    def monitor_and_record(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if result.failures:
            restart = group.spec.max_restarts - agent._remaining_restarts
            exits = [
                RankExit(
                    rank=rank,
                    exitcode=failure.exitcode,
                    pid=failure.pid,
                    time=failure.timestamp,
                    out_of_memory=failure.exitcode == -9 and count_oom_kills() > killed_before,
                    **_recorded_error(failure.error_file_data if failure.error_file != _NO_FILE else None),
                )
                for rank, failure in result.failures.items()
            ]
            try:
                write_atomic(path_of(restart), json.dumps([asdict(complete(end)) for end in exits]))
            except OSError as error:
                # Without the file, the launcher names the failed rank by its own error file or torchrun's exit code.
                print(f"the exits of the ranks cannot be written: {error}", file=sys.stderr)
            if is_final(restart):
                # The next start would end in the same way, and use up the retries within seconds.
                agent._remaining_restarts = 0
        return result

    return monitor_and_record


def ended_finally(layout: AttemptLayout, execution: int) -> bool:
    """Return whether the disk is full, or the user's program must not start again: its error would occur again, or it
    was warned of the attempt's end."""
    if ended_by_full_disk(layout, execution):
        return True
    spec = json.loads(layout.launch.read_bytes())["spec"]
    if not task_kind(spec["task"]).runs_program:
        return False
    if layout.stop_request.exists():
        # The program ended because of its warning, or could not run for long; the next attempt goes on.
        return True
    if are_final(with_tails(layout, read_rank_exits(layout, execution))):
        return True
    from worker.launcher.repeated_failures import failed_as_before  # takes longer to import than the rest together

    return failed_as_before(layout, execution)


def _recorded_error(document: Any) -> dict[str, Any]:
    """Return message and traceback from torchrun's error file. `@record` writes it, or our hook with more fields; the
    ranks of built-in tasks never write this file."""
    error = document.get("message") if isinstance(document, dict) else None
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {}
    trace = error.get("extraInfo", {}).get("py_callstack", "")
    hook = document.get("trainyard")
    return {
        "message": str(error.get("message", "")),
        "traceback": str(trace),
        "hook": hook if isinstance(hook, dict) else {},
    }


if __name__ == "__main__":
    speed_up_imports()
    given = sys.argv[1:]
    if given[0] == WAIT:
        import_torchrun()
        given = become_torchrun()
    status = main(AttemptLayout(Path(given[0])), int(given[1]), given[2], given[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter takes a third of a second to take torch down, and the end of the job would wait for it.
    os._exit(status)
