"""One rank of `bench.checkpoint`; its arguments are the plan and the result file."""

import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
from worker.engine.strategies.select import SHARDED, parallelise
from worker.export.weights import whole_weights
from worker.reporting.reporter import NullReporter

WIDTH, LAYERS = 2048, 10


class Setup:
    """A model with its optimizer under one strategy, and the manager that saves it."""

    def __init__(self, strategy: str, folder: Path, ranks: distributed.Ranks) -> None:
        spec = resolve(parse_spec(_document(strategy, ranks.world)), Site())
        self.ranks = ranks
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = parallelise(spec, nn.Sequential(*layers), ranks)
        self.optimizer = build_optimizer(spec, self.model.module, sharded=spec.strategy in SHARDED)
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


def main(plan_path: str, result_path: str) -> None:
    """Each round measures rank 0's torch.save, updates alone, a save, and updates during the save's writes."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    ranks = distributed.join(parse_spec(_document("ddp", int(os.environ["WORLD_SIZE"])) | {"backend": "gloo"}))
    folder = Path(plan["folder"])
    result = {name: rounds(Setup(name, folder, ranks), plan, folder) for name in plan["strategies"]}
    if ranks.is_first:
        Path(result_path).write_text(json.dumps(result))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


def rounds(setup: Setup, plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the seconds of each measurement in each round after the first, and the size of the state in bytes."""
    setup.steps(1)
    weights = whole_weights(setup.model.module)
    whole = {f"{name}.{part}": tensor.clone() for name, tensor in weights.items() for part in ("value", "m", "v")}
    seconds: dict[str, list[float]] = {
        "torch.save": [],
        "stall": [],
        "alone": [],
        "during": [],
        "until complete": [],
    }
    for number in range(1, plan["rounds"] + 2):
        row = {"torch.save": _torch_save(setup.ranks, whole, folder / "whole.pt"), "alone": setup.steps(plan["steps"])}
        setup.waited = 0.0
        row["stall"] = setup.save(number)
        row["during"] = setup.steps(plan["steps"])
        row["stall"] += setup.waited
        row["during"] -= setup.waited
        started = time.perf_counter()
        setup.manager.finish()
        setup.ranks.barrier()
        row["until complete"] = row["during"] + time.perf_counter() - started
        for name in seconds if number > 1 else ():
            seconds[name].append(row[name])
    return {"seconds": seconds, "bytes": sum(tensor.nbytes for tensor in whole.values())}


def _torch_save(ranks: distributed.Ranks, whole: dict[str, torch.Tensor], path: Path) -> float:
    ranks.barrier()
    started = time.perf_counter()
    if ranks.is_first:
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
    main(sys.argv[1], sys.argv[2])
