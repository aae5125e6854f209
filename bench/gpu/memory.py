"""Phase `memory`: the planner's estimate against the real peak, start-up included."""

from typing import Any

import torch

from bench.gpu import limits
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, Shape
from service.plugins.planner.builtin_models import structure_of
from service.plugins.planner.fit import Estimate, FitEstimator

TOLERANCE = 0.05
OFFLOAD = {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}
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
    return [*compared, *larger, *limits.cases(dry=dry)]


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
