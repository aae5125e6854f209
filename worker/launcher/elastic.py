"""torchrun in a process of its own, which records how each start of the ranks failed.

Run as `python -m worker.launcher.elastic <attempt folder> <node index> <arguments of torchrun>`. torchrun prints which
rank was killed by which signal, but reports it to no program, and it keeps nothing of a start that it follows with
another one.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, write_atomic
from worker.core.processes import PARENT, count_oom_kills
from worker.core.rank_exits import rank_exits_file

_NO_FILE = "<N/A>"
"""torchrun's word for the error file of a rank that left none."""


def main(layout: AttemptLayout, node: int, arguments: list[str]) -> int:
    """torchrun's exit code."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ[PARENT] = str(os.getpid())
    first = int(os.environ["TRAINYARD_EXECUTION"])
    watched: Any = LocalElasticAgent
    # The places that every start and every end of the ranks passes, restarted or not. There are no public ones.
    watched._start_workers = count_restarts(watched._start_workers)
    watched._monitor_workers = record_failures(
        watched._monitor_workers, lambda restart: rank_exits_file(layout, node, first + restart)
    )
    try:
        torchrun(arguments)
    except ChildFailedError:
        return 1
    return 0


def count_restarts(start: Callable[..., Any]) -> Callable[..., Any]:
    """`start`, with every start after the first taken off the budget of restarts.

    torchrun takes it off on the node whose rank failed alone, so the nodes would number the same start differently.
    """
    starts = 0

    def start_and_count(agent: Any, group: Any) -> Any:
        nonlocal starts
        agent._remaining_restarts = max(0, min(agent._remaining_restarts, group.spec.max_restarts - starts))
        starts += 1
        return start(agent, group)

    return start_and_count


def record_failures(monitor: Callable[..., Any], report: Callable[[int], Path]) -> Callable[..., Any]:
    """`monitor`, with a file written for each start whose ranks it finds failed; `report` names it by the number of
    starts before."""
    killed_before = count_oom_kills()

    def monitor_and_tell(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if result.failures:
            restart = group.spec.max_restarts - agent._remaining_restarts
            ended = [
                {
                    "rank": rank,
                    "exitcode": failure.exitcode,
                    "pid": failure.pid,
                    "time": failure.timestamp,
                    "out_of_memory": failure.exitcode == -9 and count_oom_kills() > killed_before,
                    **_word(failure.error_file_data if failure.error_file != _NO_FILE else None),
                }
                for rank, failure in result.failures.items()
            ]
            write_atomic(report(restart), json.dumps(ended))
        return result

    return monitor_and_tell


def _word(document: Any) -> dict[str, str]:
    """What a program left in torchrun's error file (`@record`); ours leave theirs elsewhere."""
    word = document.get("message") if isinstance(document, dict) else None
    if isinstance(word, str):
        return {"message": word}
    if not isinstance(word, dict):
        return {}
    trace = word.get("extraInfo", {}).get("py_callstack", "")
    return {"message": str(word.get("message", "")), "traceback": str(trace)}


if __name__ == "__main__":
    sys.exit(main(AttemptLayout(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]))
