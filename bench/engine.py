"""`python -m bench.engine`: speed of Trainyard, a bare loop, accelerate, Lightning Fabric and Hugging Face Trainer.

All use the same model, batches and fused AdamW with gradient clipping. Each round trains every engine for some steps.
The result is the median over the rounds of the ratio within a round, because a machine's speed drifts; the ratio of the
bare loop to its second run shows the noise. CPU time (all threads of rank 0) is more reliable on a shared machine.
Trainyard reports as in a job: to a spool on disk, with a sender thread and a service that accepts everything.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench._delayed_server import delayed_server
from bench._engines import ENGINES, SHORT_ENGINES, StepCallback, Workload
from bench._ranks import Plan, run_ranks, serve_rank
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.core import distributed
from worker.tasks.select import select_task

REQUIRED_SPEED = 0.98
"""The lowest accepted speed, relative to the bare loop and to the fastest peer."""
LENGTH, BATCH = 64, 4
"""Tokens in an example, and examples in a step."""
WARM_STEPS = 3
DOCUMENT: dict[str, Any] = {
    "task": "causal_lm",
    "precision": "fp32",
    "model": {"source": "builtin", "name": "gpt", "layers": 4, "width": 336, "heads": 6, "context": LENGTH},
    "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
    "batch": {"size": BATCH},
    "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
    "log": {"every_steps": 10},
    "checkpoint": {"export": False},
}
SHORT_DOCUMENT: dict[str, Any] = DOCUMENT | {
    "task": "regression",
    "model": {"source": "builtin", "name": "mlp", "sizes": [2, 256, 256, 3]},
    "data": {"source": "builtin", "name": "parity", "examples": 4096, "eval_fraction": 0},
}
"""A model of 67,331 parameters."""
SHORT_STEPS = 500
MAX_OVERHEAD_US = {1: 50, 2: 150}
"""The time of a short step beside forward, backward and update in the bare loop, by processes."""


def main() -> int:
    """Print the tables; return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description="Speed of Trainyard and other engines.")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--steps", type=int, default=16, help=f"steps of a round, more than {WARM_STEPS + 1}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="only the loop's own time, with a tiny model")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, one thread a process")
    if options.short:
        measured = [measure_overhead(processes, options.rounds) for processes in options.processes]
        return int(not all(measured))
    passed = [measure(processes, options.steps, options.rounds) for processes in options.processes]
    return 0 if all(passed) else 1


def measure_overhead(processes: int, rounds: int) -> bool:
    """Train a tiny model, and print how much longer a step is than in the bare loop; return whether the target is
    met."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name, delayed_server(0) as service_url:
        plan = {"steps": SHORT_STEPS, "rounds": rounds, "service_url": service_url, "short": True}
        measured = run_ranks("bench.engine", plan, processes, Path(name))
    print(f"\n{processes} processes, medians of {rounds} rounds of {SHORT_STEPS} steps, us per step")
    for clock, kind in enumerate(("wall", "CPU")):
        times = {name: [1e6 * row[clock] for row in rows] for name, rows in measured.items()}
        bare = times.pop("bare loop")
        print(f"{kind:6}bare loop {median(bare):.0f}", end="")
        own = {name: median(a - b for a, b in zip(values, bare, strict=True)) for name, values in times.items()}
        print("".join(f", {name} {value:+.0f}" for name, value in own.items()))
        if not clock:
            wall = float(own["trainyard"])
    limit = MAX_OVERHEAD_US[min(processes, 2)]
    print(f"the loop's own time: {wall:.0f} us; at most {limit}{'' if wall <= limit else '  MISSED'}")
    return wall <= limit


def measure(processes: int, steps: int, rounds: int) -> bool:
    """Train in `processes` ranks and print the table; return whether the target is met."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name, delayed_server(0) as service_url:
        plan = {"steps": steps, "rounds": rounds, "service_url": service_url}
        measured = run_ranks("bench.engine", plan, processes, Path(name))
    walls, cpus = ({name: [row[clock] for row in rows] for name, rows in measured.items()} for clock in (0, 1))
    print(f"\n{processes} processes, medians of {rounds} rounds of {steps} steps of {LENGTH * BATCH} tokens")
    print(f"{'':19}{'tokens/s':>10}{'us/step':>10}{'ratio':>8}{'min':>8}{'max':>8}{'CPU us':>10}{'ratio':>8}")
    for name in walls:
        speedups = ratios(walls, name)
        wall, cpu = median(walls[name]), median(cpus[name])
        line = f"{name:19}{LENGTH * BATCH / wall:10.0f}{wall * 1e6:10.0f}{median(speedups):8.3f}{min(speedups):8.3f}"
        print(f"{line}{max(speedups):8.3f}{cpu * 1e6:10.0f}{median(ratios(cpus, name)):8.3f}")
    for clock, times in (("wall", walls), ("CPU", cpus)):
        overhead = median(own - bare for own, bare in zip(times["trainyard"], times["bare loop"], strict=True))
        print(f"Trainyard's overhead per step compared with the bare loop, {clock}: {overhead * 1e6:.0f} us")
    fastest = min(walls, key=lambda name: median(ratios(walls, name)))
    speed = median(ratios(walls, fastest))
    missed = "" if speed >= REQUIRED_SPEED else "  MISSED"
    print(f"relative to {fastest}, the fastest: {speed:.3f}; required: {REQUIRED_SPEED}{missed}")
    return not missed


def ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Return Trainyard's speed relative to an engine in each round."""
    return [theirs / ours for theirs, ours in zip(seconds[name], seconds["trainyard"], strict=True)]


def measure_on_rank(plan: Plan) -> tuple[distributed.Ranks, dict[str, list[tuple[float, float]]]]:
    """Run each engine in each round, in alternating order; return wall and CPU seconds per step by engine and round."""
    document, engines = (SHORT_DOCUMENT, SHORT_ENGINES) if plan.get("short") else (DOCUMENT, ENGINES)
    spec = resolve(parse_spec({**document, "steps": 1, "gpus": 1, "strategy": "single"}), Site())
    ranks = distributed.join(spec)
    if ranks.world == 1:
        # accelerate and Trainer take these variables for a distributed run and would wrap the model.
        for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(variable, None)
    workload = Workload(document, select_task(spec), ranks, plan["steps"], plan["service_url"])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for number in range(plan["rounds"] + 1):
        for name in engines if number % 2 else reversed(engines):
            seconds = seconds_per_step(workload, engines[name])
            if number:
                times[name].append(seconds)
    return ranks, times


def seconds_per_step(workload: Workload, train: Callable[[Workload, StepCallback], None]) -> tuple[float, float]:
    """Train with one engine; return wall and CPU seconds per step, without the warm-up steps."""
    gc.collect()
    workload.ranks.barrier()
    starts: list[tuple[float, float]] = []
    train(workload, lambda: starts.append((time.perf_counter(), time.process_time())))
    counted = starts[WARM_STEPS : workload.steps]
    wall, cpu = (last - first for first, last in zip(counted[0], counted[-1], strict=True))
    return wall / (len(counted) - 1), cpu / (len(counted) - 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        serve_rank(measure_on_rank)
    sys.exit(main())
