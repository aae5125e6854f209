"""Phase `saves`: how long a checkpoint stops training, against `torch.save` of the same state."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES

MAX_SHARE = 0.04
"""Of the time of `torch.save`."""
SAVES = 4
_SHAPE = replace(SHAPES[0], name="0.3B", width=1024, layers=14, heads=16, feed_forward=4096)


def cases(*, dry: bool) -> list[Case]:
    return [Case(f"0.3B, {strategy}", partial(_measure, strategy), 25) for strategy in ("single", "fsdp")]


def _measure(strategy: str, tools: Tools) -> Outcome:
    document = _SHAPE.document(dry=tools.dry, strategy=strategy, steps=2 * SAVES, log={"every_steps": 2})
    document["checkpoint"] = {"every_steps": 2, "keep_last": 1, "export": False}
    trained = tools.engine.train(document, run=tools.folder / "run", wait_for_saves=True)
    # The first save allocates the host memory that the later ones use. A save counts for the interval after it.
    stalls = sorted(trained.series["perf/checkpoint_stall_seconds"].items())[2:]
    stall = median(seconds for _, seconds in stalls)
    whole = _torch_save(tools.folder / "run", tools.folder / "whole.pt")
    values = {"stall s": stall, "torch.save s": whole, "share": stall / whole}
    return Outcome(values, None if tools.dry else stall / whole <= MAX_SHARE, f"at most {MAX_SHARE:.0%}")


def _torch_save(run: Path, target: Path) -> float:
    """Return the seconds in which `torch.save` writes as many bytes as the newest checkpoint has."""
    size = sum(path.stat().st_size for path in run.rglob("*.distcp"))
    tensors = {"state": torch.zeros(size // 4)}
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        torch.save(tensors, target)
        seconds.append(time.perf_counter() - started)
    return median(seconds)
