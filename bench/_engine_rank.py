"""One rank of `bench.engine`: `python -m bench._engine_rank <plan.json> <result.json>`, as torchrun starts it."""

import gc
import json
import logging
import os
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench._engines import ENGINES
from bench._workload import Workload, load_task, single_process_spec
from worker.core import distributed
from worker.engine.flops import model_flops, run_peak_flops
from worker.tasks.base import count_tokens

WARM_STEPS = 3
COMPILE_SUFFIX = " +compile"
"""Ends the name of an engine that compiles the model."""


class StepClock:
    """Records wall and CPU time at the start of each step; a GPU is synchronized only at the first and last of them."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._synchronized = {WARM_STEPS, steps - 1} if device.type == "cuda" else set()
        self._steps = steps
        self._starts: list[tuple[float, float]] = []

    def on_step(self) -> None:
        if len(self._starts) in self._synchronized:
            torch.cuda.synchronize()
        self._starts.append((time.perf_counter(), time.process_time()))

    def seconds_per_step(self) -> tuple[float, float]:
        """Return wall seconds and CPU seconds per step, without the warm-up steps."""
        starts = self._starts[WARM_STEPS : self._steps]
        wall, cpu = (last - first for first, last in zip(starts[0], starts[-1], strict=True))
        return wall / (len(starts) - 1), cpu / (len(starts) - 1)


def main(plan_path: str, result_path: str) -> None:
    """Run each engine in each round, in alternating order; write seconds per step by engine and round."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    document, accelerator = plan["document"], plan["accelerator"]
    spec = single_process_spec(document, accelerator)
    ranks = distributed.join(spec)
    if ranks.world == 1:
        # accelerate and Trainer take these variables for a distributed run and would wrap the model.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(name, None)
    workload = Workload(document, load_task(document, accelerator), ranks, plan["steps"], plan["service_url"])
    names: list[str] = plan["engines"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(plan["rounds"] + 1):
        for name in names if number % 2 else reversed(names):
            seconds = measure(workload, name)
            if number:
                times[name].append(seconds)
    if ranks.is_first:
        Path(result_path).write_text(json.dumps(_result(workload, times)))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


def measure(workload: Workload, name: str) -> tuple[float, float]:
    """Return wall and CPU seconds per step of one engine."""
    gc.collect()
    if workload.device.type == "cuda":
        torch.cuda.empty_cache()
    workload.ranks.barrier()
    compiled = name.endswith(COMPILE_SUFFIX)
    clock = StepClock(workload.steps, workload.device)
    ENGINES[name.removesuffix(COMPILE_SUFFIX)](replace(workload, compiled=compiled), clock.on_step)
    if compiled:
        # Compiled code would keep the model in memory.
        torch.compiler.reset()
    return clock.seconds_per_step()


def _result(workload: Workload, times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    model = workload.task.build_model()
    spec = workload.spec()
    flops = model_flops(workload.task, model, spec.model)
    return {
        "seconds": {name: [wall for wall, _ in rows] for name, rows in times.items()},
        "cpu_seconds": {name: [cpu for _, cpu in rows] for name, rows in times.items()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": flops and flops.of(spec.batch.size, count_tokens(workload.task, np.arange(spec.batch.size))),
        "peak": run_peak_flops(spec, workload.device),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
