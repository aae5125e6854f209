"""`python -m bench.boundary`: the cost of synchronizing two ranks' stop requests, at each step and as the worker does.

Rounds alternate. The program prints microseconds per step of the fastest round, because other load only adds time, and
the median of the differences within a round. The two results are equal only on an idle machine.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from trainyard.demo import free_port

ROUNDS, STEPS, WORLD = 31, 60, 2


def main() -> None:
    """Start the ranks; rank 0 prints the table."""
    from torch.multiprocessing.spawn import start_processes

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ |= {"WORLD_SIZE": str(WORLD), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    start_processes(_rank, nprocs=WORLD, start_method="spawn")


def _rank(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    import torch
    import torch.distributed as dist
    from torch import nn

    from trainyard.contract.spec.templates import load_template
    from trainyard.contract.spec.training_spec import parse_spec
    from trainyard.progress_file import ProgressCounter
    from worker.core import distributed
    from worker.core.stop_signal import StopSignal
    from worker.engine.step_sync import StepSync

    torch.set_num_threads(1)
    ranks = distributed.join(parse_spec({**load_template("mlp_parity").spec, "backend": "gloo"}))
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    x = torch.randn(16, 64)
    step_sync = StepSync(ranks, StopSignal(Path(tempfile.gettempdir()) / "no-such-stop"))

    def step() -> None:
        model(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None

    variants: dict[str, Callable[[], object]] = {
        "not synchronized": lambda: None,
        "each step": lambda: ranks.any(False),
        "as the worker": step_sync.should_stop,
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, synchronize in variants.items():
            ranks.barrier()
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
                synchronize()
            times[name].append((time.perf_counter() - started) / STEPS * 1e6)
    if ranks.is_first:
        base = times["not synchronized"]
        print(f"{'us per step':16} {'fastest':>8} {'added':>8} {'median added':>14}")
        for name, values in times.items():
            added = median(value - other for value, other in zip(values, base, strict=True))
            print(f"{name:16} {min(values):8.0f} {min(values) - min(base):+8.0f} {added:+14.0f}")
        print(f"{'progress mark':16} {_mark_microseconds(ProgressCounter()):8.2f} us each")
    ranks.barrier()
    distributed.leave()
    sys.stdout.flush()
    os._exit(0)


def _mark_microseconds(progress: object) -> float:
    count = 200_000
    started = time.perf_counter()
    for _ in range(count):
        progress.mark("forward")  # type: ignore[attr-defined]
    return (time.perf_counter() - started) / count * 1e6


if __name__ == "__main__":
    main()
