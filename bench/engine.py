"""`python -m bench.engine`: speed of Trainyard, a bare loop, accelerate, Lightning Fabric and Hugging Face Trainer.

All use the same model, batches and fused AdamW with gradient clipping. Each round trains every engine for some steps.
The result is the median over the rounds of the ratio within a round, because a machine's speed drifts; the ratio of the
bare loop to its second run shows the noise. CPU time (all threads of rank 0) is more reliable on a shared machine.
Trainyard reports as in a job: to a spool on disk, with a sender thread and a service that accepts everything.

On a GPU, a Llama of 1.1 B parameters in bf16 follows, with and without compile. `--tiny` runs only that part, with a
tiny model on the CPU, as a test of the program.
"""

import argparse
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import _llama
from bench._delayed_server import delayed_server
from bench._ranks import run_ranks

REQUIRED_SPEED = 0.98
"""The lowest accepted speed, relative to the bare loop and to the fastest peer."""
REQUIRED_UTILISATION = 0.5
"""The lowest accepted share of a GPU's dense peak throughput."""

_LARGE = {
    "task": "causal_lm",
    "precision": "fp32",
    "model": {"source": "builtin", "name": "gpt", "layers": 4, "width": 336, "heads": 6, "context": 64},
    "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
    "batch": {"size": 4},
    "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
    "log": {"every_steps": 10},
    "checkpoint": {"export": False},
}
_SMALL = {
    **_LARGE,
    "model": {"source": "builtin", "name": "gpt", "layers": 1, "width": 64, "heads": 2, "context": 32},
}


_ENGINES = ("trainyard", "bare loop", "bare loop, repeated", "accelerate", "Fabric", "Trainer")
_LLAMA_ENGINES = tuple(
    f"{name}{suffix}" for suffix in ("", " +compile") for name in ("trainyard", "bare loop", "Trainer")
)


@dataclass(frozen=True)
class Setting:
    """What one table of the output measures."""

    name: str
    document: dict[str, Any]
    length: int
    """Tokens in an example."""
    processes: int
    steps: int
    rounds: int
    has_target: bool
    """Whether the speed must reach the required ratios."""
    engines: tuple[str, ...] = _ENGINES
    accelerator: str = "cpu"

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return int(self.document["batch"]["size"]) * self.length


SETTINGS = (
    Setting("5 M parameters, 1 process", _LARGE, 64, 1, steps=16, rounds=9, has_target=True),
    Setting("5 M parameters, 2 processes", _LARGE, 64, 2, steps=16, rounds=9, has_target=True),
    Setting("small model, 1 process", _SMALL, 32, 1, steps=300, rounds=7, has_target=False),
    Setting("small model, 2 processes", _SMALL, 32, 2, steps=300, rounds=7, has_target=False),
)


def main() -> int:
    """Print the tables; return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description="Speed of Trainyard and other engines.")
    parser.add_argument("--tiny", action="store_true", help="only the part for GPUs, with a tiny model on the CPU")
    if parser.parse_args().tiny:
        return 0 if measure_llama(_llama.TINY, "cpu", batch=4, steps=8, rounds=1) else 1
    print(f"{os.cpu_count()} cores, one thread a process, torch CPU")
    results = [report(setting, measure(setting)) for setting in SETTINGS]
    return 0 if all([*results, measure_on_gpu()]) else 1


def measure_on_gpu() -> bool:
    """Measure the large Llama if there is a GPU; return whether the targets are met."""
    import torch

    if not torch.cuda.is_available():
        print(f"\n{_llama.LARGE.name}: not run, this machine has no GPU")
        return True
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    batch = _llama.max_micro_batch(torch.cuda.get_device_properties(0).total_memory)
    return measure_llama(_llama.LARGE, "cuda", batch=batch, steps=28, rounds=3)


def measure_llama(size: _llama.Size, accelerator: str, *, batch: int, steps: int, rounds: int) -> bool:
    """Make and train a Llama; return whether the targets are met."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        document = _llama.make(Path(name), size, batch)
        has_target = accelerator == "cuda"
        title = f"{size.name}, bf16, 1 process, sequences of {size.length}"
        setting = Setting(title, document, size.length, 1, steps, rounds, has_target, _LLAMA_ENGINES, accelerator)
        return report(setting, measure(setting))


def measure(setting: Setting) -> dict[str, Any]:
    """Run the ranks of one setting and return their measurements."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name, delayed_server(0) as service_url:
        plan = {
            "document": setting.document,
            "accelerator": setting.accelerator,
            "steps": setting.steps,
            "rounds": setting.rounds,
            "engines": setting.engines,
            "service_url": service_url,
        }
        return run_ranks("bench._engine_rank", plan, setting.processes, Path(name))


def report(setting: Setting, measured: dict[str, Any]) -> bool:
    """Print one table; return whether the targets are met."""
    walls, cpus = measured["seconds"], measured["cpu_seconds"]
    print(f"\n{setting.name}: {measured['parameters']:,} parameters, {setting.tokens} tokens a step")
    print(f"medians of {setting.rounds} rounds of {setting.steps} steps; ratio: Trainyard's speed by the engine's")
    print(f"{'':19}{'tokens/s':>10}{'us/step':>10}{'ratio':>8}{'min':>8}{'max':>8}{'CPU us':>10}{'ratio':>8}")
    for name in walls:
        speedups = ratios(walls, name)
        wall, cpu = median(walls[name]), median(cpus[name])
        line = f"{name:19}{setting.tokens / wall:10.0f}{wall * 1e6:10.0f}{median(speedups):8.3f}{min(speedups):8.3f}"
        line += f"{max(speedups):8.3f}{cpu * 1e6:10.0f}{median(ratios(cpus, name)):8.3f}"
        print(line + format_utilisation(measured, walls[name]))
    for clock, times in (("wall", walls), ("CPU", cpus)):
        overhead = median(own - bare for own, bare in zip(times["trainyard"], times["bare loop"], strict=True))
        print(f"Trainyard's overhead per step compared with the bare loop, {clock}: {overhead * 1e6:.0f} us")
    return meets_targets(setting, measured)


def ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Return Trainyard's speed relative to an engine in each round; both compiled or both not."""
    own = seconds["trainyard +compile" if name.endswith("+compile") else "trainyard"]
    return [theirs / ours for theirs, ours in zip(seconds[name], own, strict=True)]


def format_utilisation(measured: dict[str, Any], walls: list[float]) -> str:
    """Return the end of a table row, or "" if the utilisation is unknown."""
    share = utilisation(measured, walls)
    return f"  {share:.1%} of the peak" if share else ""


def utilisation(measured: dict[str, Any], walls: list[float]) -> float | None:
    """Return the model's FLOP/s as a share of the device's peak, or None if one of them is unknown."""
    return measured["flops"] / measured["peak"] / median(walls) if measured["flops"] and measured["peak"] else None


def meets_targets(setting: Setting, measured: dict[str, Any]) -> bool:
    """Print each target of the setting and whether it is met; return whether all are."""
    if not setting.has_target:
        return True
    speedups = {name: median(ratios(measured["seconds"], name)) for name in measured["seconds"]}
    fastest = min(speedups, key=lambda name: speedups[name])
    good = speedups[fastest] >= REQUIRED_SPEED
    print(
        f"relative to {fastest}, the fastest: {speedups[fastest]:.3f}; required: {REQUIRED_SPEED}"
        + ("" if good else "  MISSED")
    )
    share = utilisation(measured, measured["seconds"].get("trainyard +compile", [math.inf]))
    if share is None or not share:
        return good
    utilised = share >= REQUIRED_UTILISATION
    print(f"utilisation: {share:.1%}; required: {REQUIRED_UTILISATION:.0%}" + ("" if utilised else "  MISSED"))
    return good and utilised


if __name__ == "__main__":
    sys.exit(main())
