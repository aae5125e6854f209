"""`python -m bench.checkpoint`: how long a save of 500 MB stops training, compared with rank 0's `torch.save`.

Two processes, replicated (ddp) and sharded (fsdp) state: 42 M parameters and AdamW's two moments. The first save, which
allocates the buffers, is not counted. The program also prints how much the background write slows the steps.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from bench._ranks import Plan, run_ranks, serve_rank
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from worker.checkpoint.manager import CheckpointManager
from worker.core import distributed
from worker.engine.optim import build_optimizer
from worker.engine.precision import Precision
from worker.engine.state import TrainingState
from worker.engine.strategies.select import parallelise
from worker.export.weights import whole_weights
from worker.reporting.reporter import NullReporter

MAX_STALL = 0.04
"""The longest accepted stall, as a share of the time of torch.save."""
RANKS, STEPS = 2, 12
WIDTH, LAYERS = 2048, 10


def main() -> int:
    """Print the table; return 1 if a stall is longer than allowed, else 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7, help="saves that are counted")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        plan = {"folder": name, "strategies": ["ddp", "fsdp"], "rounds": rounds}
        results = run_ranks("bench.checkpoint", plan, RANKS, Path(name))
    print(f"{os.cpu_count()} cores, {RANKS} processes, medians of {rounds} saves after the first")
    print(
        f"{'':10}{'MB':>6}{'torch.save s':>14}{'stall s':>9}{'share':>8}{'total extra s':>16}{'complete after s':>18}"
    )
    passed = [report(name, row) for name, row in results.items()]
    print(f"share: median of stall / torch.save in the same round; allowed: {MAX_STALL:.0%}")
    return 0 if all(passed) else 1


def report(name: str, row: dict[str, Any]) -> bool:
    """Print one line; return whether the stall is short enough."""
    seconds: dict[str, list[float]] = row["seconds"]
    share = median(stall / whole for stall, whole in zip(seconds["stall"], seconds["torch.save"], strict=True))
    extra = median(
        stall + during - alone
        for stall, during, alone in zip(seconds["stall"], seconds["during"], seconds["alone"], strict=True)
    )
    line = f"{name:10}{row['bytes'] / 1e6:6.0f}{median(seconds['torch.save']):14.2f}{median(seconds['stall']):9.3f}"
    line += f"{share:8.1%}{extra:16.2f}{median(seconds['until complete']):18.2f}"
    print(line + ("" if share <= MAX_STALL else "  MISSED"))
    return share <= MAX_STALL


class Setup:
    """A model with its optimizer under one strategy, and the manager that saves it."""

    def __init__(self, strategy: str, folder: Path, ranks: distributed.Ranks) -> None:
        spec = resolve(parse_spec(_document(strategy, ranks.world)), Site())
        self.ranks = ranks
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = parallelise(spec, nn.Sequential(*layers), ranks)
        self.optimizer = build_optimizer(spec, self.model.module, sharded=spec.strategy_kind.is_sharded)
        precision = Precision("fp32", spec.amp, ranks.device)
        self.state = TrainingState(self.model.module, [self.optimizer], precision, ranks, 0)
        self.manager = CheckpointManager(RunLayout(folder / strategy), _launch(spec), 1, ranks)
        self.manager.bind(NullReporter())
        self.batch = torch.randn(4, WIDTH)
        self.waited = 0.0
        """Seconds that updates have waited for the copy of the state."""

    def steps(self, count: int) -> float:
        """Return the seconds that `count` updates take."""
        self.ranks.barrier()
        started = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            self.model.forward(self.batch).square().mean().backward()
            waiting = time.perf_counter()
            self.manager.wait_staged()
            self.waited += time.perf_counter() - waiting
            self.optimizer.step()
        self.ranks.barrier()
        return time.perf_counter() - started

    def save(self, step: int) -> float:
        """Return the seconds for which a save stops training, as the trainer measures them."""
        self.ranks.barrier()
        started = time.perf_counter()
        self.manager.save(step, self.state.capture(step, 0), {})
        return time.perf_counter() - started


def measure_on_rank(plan: Plan) -> tuple[distributed.Ranks, dict[str, Any]]:
    """Each round measures rank 0's torch.save, updates alone, a save, and updates during the save's writes."""
    ranks = distributed.join(parse_spec(_document("ddp", RANKS) | {"backend": "gloo"}))
    folder = Path(plan["folder"])
    return ranks, {name: run_rounds(Setup(name, folder, ranks), plan["rounds"], folder) for name in plan["strategies"]}


def run_rounds(setup: Setup, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the seconds of each measurement in each round after the first, and the size of the state in bytes."""
    setup.steps(1)
    weights = whole_weights(setup.model.module)
    whole = {f"{name}.{part}": tensor.clone() for name, tensor in weights.items() for part in ("value", "m", "v")}
    names = ("torch.save", "stall", "alone", "during", "until complete")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, rounds + 2):
        row = {"torch.save": _torch_save(setup.ranks, whole, folder / "whole.pt"), "alone": setup.steps(STEPS)}
        setup.waited = 0.0
        row["stall"] = setup.save(number)
        row["during"] = setup.steps(STEPS)
        row["stall"] += setup.waited
        row["during"] -= setup.waited
        started = time.perf_counter()
        setup.manager.finish()
        setup.ranks.barrier()
        row["until complete"] = row["during"] + time.perf_counter() - started
        for name in names if number > 1 else ():
            seconds[name].append(row[name])
    return {"seconds": seconds, "bytes": sum(tensor.nbytes for tensor in whole.values())}


def _torch_save(ranks: distributed.Ranks, whole: dict[str, torch.Tensor], path: Path) -> float:
    ranks.barrier()
    started = time.perf_counter()
    if ranks.is_rank_0:
        torch.save(whole, path)
    seconds = time.perf_counter() - started
    ranks.barrier()
    return seconds


def _document(strategy: str, world: int) -> dict[str, Any]:
    return {
        "task": "regression",
        "strategy": strategy,
        "gpus": world,
        "steps": 1000,
        "model": {"source": "builtin", "name": "mlp"},
        "data": {"source": "builtin", "name": "parity"},
        "checkpoint": {"keep_last": 1},
    }


def _launch(spec: TrainingSpec) -> LaunchDocument:
    return LaunchDocument(
        job_id="bench",
        attempt_id="a1",
        attempt=1,
        tag="ty-bench-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=spec.gpus,
        heartbeat_seconds=10,
        spec=spec,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        serve_rank(measure_on_rank)
    sys.exit(main())
