"""Starts the ranks of a benchmark: each runs `python -m <program> --rank plan.json result.json`."""

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from trainyard.demo import free_port
from worker.core import distributed

Plan = dict[str, Any]


def run_ranks(program: str, plan: Plan, processes: int, folder: Path) -> Any:
    """Run a program on every rank and return the result of rank 0.

    Raises:
        SystemExit: a rank failed.
    """
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", program, "--rank", str(folder / "plan.json"), str(folder / "result.json")]
    port = free_port()
    ranks = [subprocess.Popen(command, env=_environment(processes, rank, port)) for rank in range(processes)]
    if sum(rank.wait() for rank in ranks):
        raise SystemExit(f"a rank of {program} failed")
    return json.loads((folder / "result.json").read_text())


def serve_rank(measure: Callable[[Plan], tuple[distributed.Ranks, Any]]) -> NoReturn:
    """Run one rank of a program, which joins the group itself and returns it with the result to write."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    plan_path, result_path = map(Path, sys.argv[2:])
    ranks, result = measure(json.loads(plan_path.read_text()))
    if ranks.is_rank_0:
        result_path.write_text(json.dumps(result))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


def _environment(world: int, rank: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "bench",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
