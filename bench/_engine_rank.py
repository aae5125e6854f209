"""One rank of `bench.engine`: `python -m bench._engine_rank <plan.json> <result.json>`, as torchrun starts it."""

import gc
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from bench._contenders import CONTENDERS, Bench, spec_of, task_of
from worker import distributed

WARM_STEPS = 3


def main(plan_path: str, result_path: str) -> None:
    """Every contender in turns, forwards and backwards; writes seconds per step by contender and round."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    ranks = distributed.join(spec_of(plan["document"]))
    if ranks.world == 1:
        # accelerate and Trainer take these variables for a distributed run and would wrap the model.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(name, None)
    task = task_of(plan["document"])
    bench = Bench(plan["document"], task, ranks, plan["steps"], plan["service_url"])
    names = [name for name in CONTENDERS if name in plan["contenders"]]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(plan["rounds"] + 1):
        for name in names if number % 2 else reversed(names):
            found = seconds_per_step(bench, name)
            if number:
                seconds[name].append(found)
    if ranks.first:
        parameters = sum(parameter.numel() for parameter in task.build_model().parameters())
        Path(result_path).write_text(json.dumps({"seconds": seconds, "parameters": parameters}))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


def seconds_per_step(bench: Bench, name: str) -> float:
    """From the start of the first step after the warm ones to the start of the last."""
    gc.collect()
    bench.ranks.barrier()
    ticks: list[float] = []
    CONTENDERS[name](bench, lambda: ticks.append(time.perf_counter()))
    counted = ticks[WARM_STEPS : bench.steps]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
