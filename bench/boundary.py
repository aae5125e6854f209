"""What it costs two ranks to agree between steps whether to stop: at every step, and as often as the worker does it.

`python -m bench.boundary` prints microseconds a step: of the quickest of interleaved rounds, as other work only adds,
and the median of what was added within each round. The two agree on a quiet machine alone.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROUNDS, STEPS, WORLD = 31, 60, 2


def main() -> None:
    """Start the ranks and print rank 0's answer."""
    from torch.multiprocessing.spawn import start_processes

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
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
    boundary = StepSync(ranks, StopSignal(Path(tempfile.gettempdir()) / "no-such-stop"))

    def step() -> None:
        model(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None

    variants: dict[str, Callable[[], object]] = {
        "no agreement": lambda: None,
        "at every step": lambda: ranks.any(False),
        "as it is done": boundary.should_stop,
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, agree in variants.items():
            ranks.barrier()
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
                agree()
            times[name].append((time.perf_counter() - started) / STEPS * 1e6)
    if ranks.first:
        alone = times["no agreement"]
        print(f"{'':16} {'quickest':>8} {'beyond':>8} {'median of the pairs':>22}")
        for name, values in times.items():
            beyond = median(value - other for value, other in zip(values, alone, strict=True))
            print(f"{name:16} {min(values):8.0f} {min(values) - min(alone):+8.0f} {beyond:+22.0f}  us a step")
        print(f"{'a mark':16} {_mark(ProgressCounter()):8.2f} us")
    ranks.barrier()
    distributed.leave()
    sys.stdout.flush()
    os._exit(0)


def _mark(progress: object) -> float:
    count = 200_000
    started = time.perf_counter()
    for _ in range(count):
        progress.mark("forward")  # type: ignore[attr-defined]
    return (time.perf_counter() - started) / count * 1e6


if __name__ == "__main__":
    main()
