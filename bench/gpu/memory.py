"""Phase `memory`: the planner's estimate against the real peak, and the automatic micro-batch against the largest."""

import gc
from typing import Any

import torch

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, Shape
from service.plugins.planner.builtin_models import structure_of
from service.plugins.planner.fit import Estimate, FitEstimator
from worker.core.errors import is_out_of_memory

TOLERANCE = 0.05
OFFLOAD = {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}
SHARE = 256
"""Examples of a step, far more than fit at once."""
BYTES_PER_PARAMETER = 16
"""Weights, gradients and two moments in fp32."""
_VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "fsdp": {"strategy": "fsdp"},
    "full recomputation": {"activation_checkpointing": "full"},
    "offloaded activations": {"activation_checkpointing": "offload"},
    "offload": OFFLOAD,
    "fp8": {"precision": "fp8"},
    "halves": {"param_dtype": "bf16", "grad_dtype": "bf16"},
    "halves, int8": {
        "param_dtype": "bf16",
        "grad_dtype": "bf16",
        "optimizer": {"name": "adamw", "lr": 1e-4, "clip_norm": 1.0, "state_dtype": "int8"},
    },
    "LoRA": {"lora_rank": 16},
    "LoRA, bf16 base": {"lora_rank": 16, "lora": {"base_dtype": "bf16"}},
    "QLoRA": {"lora_rank": 16, "lora": {"base_dtype": "nf4"}},
}


def cases(*, dry: bool) -> list[Case]:
    compared = [
        Case(f"1B, {name}", _compare(SHAPES[0], changes))
        for name, changes in _VARIANTS.items()
        if not dry or name in ("LoRA", "QLoRA")
    ]
    larger = [] if dry else [Case("1B, larger than the device", _train_larger_than_device)]
    probed = [
        Case(f"1B, {strategy}: automatic micro-batch against the limit", _probe(strategy), 60)
        for strategy in (("single",) if dry else ("single", "fsdp"))
    ]
    return [*compared, *larger, *probed]


def _train_larger_than_device(tools: Tools) -> Outcome:
    """Train where torch may allocate half as much device memory as parameters, gradients and optimizer state have."""
    document = SHAPES[0].document(dry=tools.dry, steps=3, activation_checkpointing="offload", **OFFLOAD)
    structure = structure_of(tools.engine.resolve(document).model)  # type: ignore[arg-type]
    assert structure is not None
    limit = BYTES_PER_PARAMETER * structure.count // 2
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        trained = tools.engine.train(document)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    values = {"limit GiB": limit / 2**30, "measured GiB": trained.peak_bytes / 2**30}
    return Outcome(values, len(trained.losses) > 0, "trains in half the memory of its state")


def _compare(shape: Shape, changes: dict[str, Any]) -> Any:
    def run(tools: Tools) -> Outcome:
        document = shape.document(dry=tools.dry, steps=3, **changes)
        spec = tools.engine.resolve(document)
        structure = structure_of(spec.model)  # type: ignore[arg-type]
        assert structure is not None
        estimate = FitEstimator(structure, cpu=not tools.engine.on_gpu).estimate(spec)
        assert isinstance(estimate, Estimate), estimate
        planned = estimate.peak
        measured = tools.engine.train(document).peak_bytes
        values = {"planned GiB": planned / 2**30, "measured GiB": measured / 2**30}
        if not measured:
            return Outcome(values, None, "peaks are measured on GPUs alone")
        return Outcome(
            values | {"ratio": planned / measured}, abs(planned / measured - 1) <= TOLERANCE, f"within {TOLERANCE:.0%}"
        )

    return run


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
