"""Starts the ranks of a benchmark, passes them a plan file and reads the result file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainyard.demo import free_port


def run_ranks(module: str, plan: dict[str, Any], processes: int, folder: Path) -> dict[str, Any]:
    """Run `python -m <module> plan.json result.json` on every rank and return rank 0's result.

    Raises:
        SystemExit: a rank failed.
    """
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", module, str(folder / "plan.json"), str(folder / "result.json")]
    port = free_port()
    ranks = [subprocess.Popen(command, env=_environment(processes, rank, port)) for rank in range(processes)]
    if sum(rank.wait() for rank in ranks):
        raise SystemExit(f"a rank of {module} failed")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


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
