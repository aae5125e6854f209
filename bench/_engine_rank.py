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

import torch

from bench._bench import Bench, spec_of, task_of
from bench._contenders import CONTENDERS
from worker.core import distributed
from worker.engine.flops import flops_per_example, run_peak_flops

WARM_STEPS = 3
COMPILED = " +compile"
"""At the end of a contender's name: it compiles the model."""


class Clock:
    """The starts of the steps, by the wall and by the processor time of all threads.

    A device is waited for only where counting begins and ends.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self._ends = {WARM_STEPS, steps - 1} if device.type == "cuda" else set()
        self._steps = steps
        self._ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        if len(self._ticks) in self._ends:
            torch.cuda.synchronize()
        self._ticks.append((time.perf_counter(), time.process_time()))

    def seconds_per_step(self) -> tuple[float, float]:
        """Of the wall and of the processor."""
        counted = self._ticks[WARM_STEPS : self._steps]
        wall, processor = (last - first for first, last in zip(counted[0], counted[-1], strict=True))
        return wall / (len(counted) - 1), processor / (len(counted) - 1)


def main(plan_path: str, result_path: str) -> None:
    """Every contender in turns, forwards and backwards; writes seconds per step by contender and round."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    document, accelerator = plan["document"], plan["accelerator"]
    spec = spec_of(document, accelerator)
    ranks = distributed.join(spec)
    if ranks.world == 1:
        # accelerate and Trainer take these variables for a distributed run and would wrap the model.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(name, None)
    bench = Bench(document, task_of(document, accelerator), ranks, plan["steps"], plan["service_url"])
    names: list[str] = plan["contenders"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(plan["rounds"] + 1):
        for name in names if number % 2 else reversed(names):
            seconds = measured(bench, name)
            if number:
                times[name].append(seconds)
    if ranks.first:
        Path(result_path).write_text(json.dumps(_result(bench, times)))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


def measured(bench: Bench, name: str) -> tuple[float, float]:
    """Seconds per step of one contender: from the start of the first step after the warm ones to that of the last."""
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    bench.ranks.barrier()
    compiled = name.endswith(COMPILED)
    clock = Clock(bench.steps, bench.device)
    CONTENDERS[name.removesuffix(COMPILED)](replace(bench, compiled=compiled), clock.tick)
    if compiled:
        # What was compiled for this model would keep it in memory.
        torch.compiler.reset()
    return clock.seconds_per_step()


def _result(bench: Bench, times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    model = bench.task.build_model()
    spec = bench.spec()
    flops = flops_per_example(bench.task, model, spec.model)
    return {
        "seconds": {name: [wall for wall, _ in rows] for name, rows in times.items()},
        "processor_seconds": {name: [processor for _, processor in rows] for name, rows in times.items()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": flops and flops * spec.batch.size,
        "peak": run_peak_flops(spec, bench.device),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
