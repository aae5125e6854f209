"""The largest micro-batch that `batch.micro_size: auto` finds against the largest that trains, in phase `memory`."""

import gc
from typing import Any

import torch

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES
from worker.core.errors import is_out_of_memory

SHARE = 256
"""Examples of a step, far more than fit at once."""


def cases(*, dry: bool) -> list[Case]:
    return [
        Case(f"1B, {strategy}: automatic micro-batch against the limit", _probe(strategy))
        for strategy in (("single",) if dry else ("single", "fsdp"))
    ]


def _probe(strategy: str) -> Any:
    def run(tools: Tools) -> Outcome:
        share = 4 if tools.dry else SHARE
        document = SHAPES[0].document(dry=tools.dry, strategy=strategy, steps=2, log={"every_steps": 1})
        automatic = document | {"batch": {"size": share, "micro_size": "auto"}}
        chosen = int(tools.engine.train(automatic | {"steps": 1}).events["micro_size_chosen"][0]["micro_size"])
        # The choice has just trained. The next larger halving of the share must not fit, or the choice was too small.
        fits, fails = chosen, min(2 * chosen, share + 1)
        while fails - fits > 1:
            size = (fits + fails) // 2
            if _trains(tools, document | {"batch": {"size": size, "micro_size": size}}):
                fits = size
            else:
                fails = size
        values = {"chosen": chosen, "largest": fits, "share of the largest": chosen / fits}
        next_size = min(2 * chosen, share)
        larger_fits = next_size > chosen and _trains(
            tools, document | {"batch": {"size": next_size, "micro_size": next_size}}
        )
        # Sharded strategies estimate, and leave a tenth of the memory free.
        passed = strategy != "single" or not larger_fits
        return Outcome(values, passed, "the choice trains; with `single` the next larger halving does not")

    return run


def _trains(tools: Tools, document: dict[str, Any]) -> bool:
    try:
        tools.engine.train(document)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()
        if tools.engine.on_gpu:
            torch.cuda.empty_cache()
    return True
