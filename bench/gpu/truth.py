"""Phase `truth`: every way to train computes the same as the plain one on the same device."""

from pathlib import Path
from typing import Any

from bench.gpu import packed
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.training import TrainedRun

STEPS = 8
_LLAMA = {"source": "builtin", "name": "llama", "layers": 4, "width": 128, "heads": 4, "context": 128}
_TINY = {"layers": 1, "width": 16, "heads": 2, "context": 16}


def base_document(*, dry: bool, **changes: Any) -> dict[str, Any]:
    """Return a spec with changes; with `dry` its model is tiny."""
    document: dict[str, Any] = {
        "task": "causal_lm",
        "precision": "fp32",
        "model": _LLAMA | {"name": "gpt"},
        "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
        "batch": {"size": 16, "micro_size": 8},
        "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
        "steps": STEPS,
        "log": {"every_steps": 1},
        "checkpoint": {"export": False, "every_steps": 4},
    } | changes
    return document | {"model": document["model"] | (_TINY if dry else {})}


_HALVES: dict[str, Any] = {"precision": "bf16", "param_dtype": "bf16"}
_INT8: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0, "state_dtype": "int8"}}
_OFFLOAD: dict[str, Any] = {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}
_VARIANTS: dict[str, tuple[dict[str, Any], float]] = {
    "zero1": ({"strategy": "zero1"}, 1e-4),
    "zero2": ({"strategy": "zero2"}, 1e-4),
    "fsdp": ({"strategy": "fsdp"}, 1e-4),
    "ddp": ({"strategy": "ddp"}, 1e-4),
    "llama": ({"model": _LLAMA}, 0.0),
    "full recomputation": ({"activation_checkpointing": "full"}, 1e-4),
    "selective recomputation": ({"activation_checkpointing": "selective"}, 1e-4),
    "compile": ({"compile": True}, 1e-3),
    "bf16": ({"precision": "bf16"}, 0.02),
    "fp16": ({"precision": "fp16"}, 0.02),
    "bf16 fsdp": ({"precision": "bf16", "strategy": "fsdp"}, 0.02),
    "halves": (_HALVES, 0.02),
    "halves compiled": (_HALVES | {"compile": True, "grad_dtype": "bf16"}, 0.02),
    "halves int8 fsdp": (_HALVES | _INT8 | {"strategy": "fsdp"}, 0.02),
    "fp8": ({"precision": "fp8"}, 0.05),
    "fp8 fsdp": ({"precision": "fp8", "strategy": "fsdp"}, 0.05),
    "fp8 compiled": ({"precision": "fp8", "compile": True}, 0.05),
    "tf32": ({"tf32": True}, 0.01),
    "offload": (_OFFLOAD, 1e-4),
    "offload fp16": (_OFFLOAD | {"precision": "fp16"}, 0.02),
    "offloaded activations": ({"activation_checkpointing": "offload"}, 1e-4),
    "offloaded activations fsdp": ({"activation_checkpointing": "offload", "strategy": "fsdp"}, 1e-4),
    "offloaded activations compiled": ({"activation_checkpointing": "offload", "compile": True}, 1e-3),
}
"""Changes of the base spec, and the largest relative difference of a loss. 0: the spec is compared with itself."""
_DRY = ("fsdp", "llama", "full recomputation", "bf16", "fp8", "offloaded activations")
"""Variants of a dry run. The others need a GPU or a compiler, or take the same way as one of these."""


def cases(*, dry: bool) -> list[Case]:
    variants, resumed = (
        (_DRY, ("bf16 fsdp",)) if dry else (_VARIANTS, ("llama", "fsdp", "bf16 fsdp", "halves int8 fsdp"))
    )
    return [
        *(Case(f"{name} against single in fp32", _compare(name)) for name in variants),
        *(Case(f"resume as text, {name}", _resume(name)) for name in resumed),
        Case("LoRA, exported", _lora),
        *(Case(f"LoRA on an {dtype} base, fsdp against single", _held(dtype)) for dtype in ("int8", "nf4")),
        Case("automatic micro-batch size", _automatic_micro_size),
        *packed.cases(dry=dry),
    ]


def _compare(name: str) -> Any:
    changes, tolerance = _VARIANTS[name]

    def run(tools: Tools) -> Outcome:
        expected = tools.engine.train(base_document(dry=tools.dry, **({} if tolerance else changes)))
        actual = tools.engine.train(base_document(dry=tools.dry, **changes))
        difference = _difference(expected, actual)
        note = f"losses of {STEPS} steps, at most {tolerance:g}" if tolerance else "two runs have equal losses as text"
        return Outcome({"largest relative difference": difference}, difference <= tolerance, note)

    return run


def _difference(expected: TrainedRun, actual: TrainedRun) -> float:
    pairs = zip(expected.losses, actual.losses, strict=True)
    return max(abs(float(one) - float(other)) / abs(float(one)) for one, other in pairs)


def _resume(name: str) -> Any:
    changes, _ = _VARIANTS[name]

    def run(tools: Tools) -> Outcome:
        document = base_document(dry=tools.dry, **changes)
        whole = tools.engine.train(document, run=_run(tools, "whole"))
        folder = _run(tools, "parts")
        first = tools.engine.train(document, run=folder, until=STEPS // 2)
        second = tools.engine.train(document, run=folder)
        equal = [*first.losses, *second.losses] == whole.losses
        return Outcome({"steps": len(whole.losses)}, equal, "equal losses as text after a restart in the middle")

    return run


def _lora(tools: Tools) -> Outcome:
    document = base_document(dry=tools.dry, lora_rank=8, checkpoint={"export": True})
    folder = _run(tools, "lora")
    trained = tools.engine.train(document, run=folder, export=True)
    files = sorted(path.name for path in (folder / "export").iterdir())
    losses = [float(loss) for loss in trained.losses]
    passed = "adapter_model.safetensors" in files and losses[-1] < losses[0]
    return Outcome({"first loss": losses[0], "last loss": losses[-1]}, passed, "adapters are written, the loss falls")


def _held(dtype: str) -> Any:
    def run(tools: Tools) -> Outcome:
        document = base_document(dry=tools.dry, lora_rank=8, lora={"base_dtype": dtype})
        alone = tools.engine.train(document)
        difference = _difference(alone, tools.engine.train(document | {"strategy": "fsdp"}))
        falls = float(alone.losses[-1]) < float(alone.losses[0])
        passed = difference <= 1e-4 and falls
        return Outcome({"largest relative difference": difference}, passed, f"losses of {STEPS} steps, which fall")

    return run


def _automatic_micro_size(tools: Tools) -> Outcome:
    document = base_document(dry=tools.dry, batch={"size": 64, "micro_size": "auto"}, steps=2)
    trained = tools.engine.train(document)
    return Outcome({"loss": float(trained.losses[-1])}, len(trained.losses) == 2, "a size is chosen, and steps follow")


def _run(tools: Tools, name: str) -> Path:
    folder = tools.folder / name
    folder.mkdir()
    return folder
