"""Phase `memory`: the planner's estimate against the real peak, start-up included."""

from typing import Any

from bench.gpu import limits
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, Shape
from service.planner.builtin_models import structure_of
from service.planner.fit import Estimate, FitEstimator

TOLERANCE = 0.05
_VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "fsdp": {"strategy": "fsdp"},
    "full recomputation": {"activation_checkpointing": "full"},
    "fp8": {"precision": "fp8"},
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
    return [*compared, *limits.cases(dry=dry)]


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
