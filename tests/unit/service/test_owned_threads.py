"""Whatever runs beside the event loop has an owner and a deadline: it takes a slot of `ThreadSlots`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FORBIDDEN = frozenset(
    {"ThreadPoolExecutor", "ProcessPoolExecutor", "to_thread", "run_in_executor", "run_in_threadpool", "run_sync"}
    | {"Thread", "Timer", "start_new_thread", "multiprocessing", "Semaphore", "BoundedSemaphore", "CapacityLimiter"}
    | {"Queue", "SimpleQueue"}
)
_IN_TURNS = "one thread of the service, which serves jobs in turns, whoever notifies it"
_BEFORE_OWNER = "it finds out who the owner is, by one indexed look-up; rates are limited by address"
EXCEPTIONS = {
    "core/thread_slots.py": ({"Thread", "run_in_threadpool"}, "the class itself"),
    "core/periodic_task.py": ({"Thread"}, _IN_TURNS),
    "reconciler/poll_loop.py": ({"Thread"}, _IN_TURNS),
    "metrics/summaries.py": ({"Thread"}, _IN_TURNS),
    "metrics/downsampling/downsampler.py": ({"Thread"}, _IN_TURNS),
    "metrics/ingest/batch_queue.py": ({"Thread"}, "one writer; an attempt has at most half of its queue"),
    "streaming/broadcaster.py": ({"Thread"}, "one reader; a user has a limited number of streams"),
    "reconciler/submission/pool.py": ({"Thread"}, "an account has half of the threads; sbatch has a time limit"),
    "scheduler/slurm/late_answers.py": (
        {"BoundedSemaphore", "Thread"},
        "of the service: one call of each purpose at a time, and eight cancellations, with the time limit of a command",
    ),
    "scheduler/local/scheduler.py": ({"Queue"}, "a class of the service: jobs of the local backend, in files"),
    "as_owner/program.py": ({"Thread"}, "the deadline of a process of its own"),
    "api/middleware/authentication.py": (
        {"run_in_threadpool"},
        _BEFORE_OWNER,
    ),
    "metrics/ingest/worker_tokens.py": ({"run_in_threadpool"}, _BEFORE_OWNER),
    "api/middleware/audit.py": ({"run_in_threadpool"}, "one row, after the slot of its request was released"),
}
"""What each file below `service` may use without a slot, and why."""


def forbidden_in(source: str) -> Iterator[str]:
    """Yield the executors, threads and queues that a module names, under their own names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [part for alias in node.names for part in alias.name.split(".")]
            named += (getattr(node, "module", None) or "").split(".")
        else:
            named = [node.attr] if isinstance(node, ast.Attribute) else []
        yield from FORBIDDEN.intersection(named)


def test_nothing_runs_without_an_owner() -> None:
    used = {}
    for path in sorted((ROOT / "service").rglob("*.py")):
        if names := set(forbidden_in(path.read_text())):
            used[str(path.relative_to(ROOT / "service"))] = names
    expected = {path: names for path, (names, _) in EXCEPTIONS.items()}
    assert used == expected, "take a slot of ThreadSlots, or give a reason"


@pytest.mark.parametrize(
    "source",
    [
        "from concurrent.futures import ThreadPoolExecutor as Pool",
        "import concurrent.futures as f\nf.ProcessPoolExecutor()",
        "import asyncio\nasyncio.to_thread(print)",
        "loop.run_in_executor(None, print)",
        "from starlette.concurrency import run_in_threadpool",
        "import anyio\nanyio.to_thread.run_sync(print)",
        "import threading as t\nt.Thread(target=print)",
        "from multiprocessing import Pool",
        "from asyncio import Semaphore",
    ],
)
def test_each_way_around_the_slots_is_noticed(source: str) -> None:
    assert list(forbidden_in(source))
