"""Phase `speed`: tokens per second and MFU of each shape with the recipe that suits it, and a profile of a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from bench.gpu import torchtitan
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.packed import write_texts
from bench.gpu.shapes import SHAPES, TINY_LENGTH, Shape
from worker.data.sampler import GlobalBatches
from worker.engine.flops import model_flops, run_peak_flops
from worker.tasks.base import count_tokens
from worker.tasks.select import select_task

WARM_STEPS, TIMED_STEPS, PROFILED_STEPS = 3, 5, 2
MEAN_TEXT = 12
"""A packed row holds about so many texts."""
_1B, _3B, _8B = SHAPES
_HALVES: dict[str, Any] = {
    "param_dtype": "bf16",
    "grad_dtype": "bf16",
    "optimizer": {"name": "adamw", "lr": 1e-4, "clip_norm": 1.0, "state_dtype": "bf16"},
}


@dataclass(frozen=True)
class Recipe:
    """A shape with settings, and the goal that is set for it."""

    name: str
    shape: Shape
    changes: dict[str, Any] = field(default_factory=dict)
    goal: dict[str, float] = field(default_factory=dict)
    """The least value, by name."""
    ratio_goal: tuple[str, str, float] | None = None
    """A name, an earlier case, and the least ratio of the tokens per second to its."""
    packed: bool = False
    """Fine-tuning on packed rows of texts."""
    accumulation: int = 1
    profiled: bool = False
    seconds: float = 60.0


RECIPES = (
    Recipe("1B, compiled", _1B, goal={"MFU": 0.56}, profiled=True, seconds=35),
    Recipe("3B, compiled, 16k tokens", replace(_3B, micro_size=4), goal={"MFU": 0.60}, seconds=45),
    Recipe(
        "8B, bf16 parameters and moments, 2 x 8k tokens", replace(_8B, length=8192), _HALVES, accumulation=2, seconds=75
    ),
    Recipe("8B, bf16 parameters and moments, 4k tokens", _8B, _HALVES, {"tokens/s": 11_500}, seconds=55),
    Recipe(
        "8B, fp8",
        replace(_8B, length=8192),
        _HALVES | {"precision": "fp8"},
        {"tokens/s": 13_500},
        accumulation=2,
        seconds=75,
    ),
    Recipe("1B, fp8", _1B, {"precision": "fp8"}, ratio_goal=("to bf16", "1B, compiled", 1.08), seconds=35),
    Recipe("8B, LoRA", _8B, {"lora_rank": 16, "lora": {"base_dtype": "bf16"}}, packed=True),
    Recipe(
        "8B, QLoRA",
        _8B,
        {"lora_rank": 16, "lora": {"base_dtype": "nf4"}},
        ratio_goal=("to LoRA", "8B, LoRA", 1 / 1.3),
        packed=True,
    ),
)
_GROUPS = {
    "attention": ("flash", "fmha", "cudnn", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "::mm", "_scaled_mm"),
    "head": ("cross_entropy",),
    "update": ("fused_adam", "multi_tensor", "adamw"),
    "compiled": ("triton_",),
    "copies": ("copy", "memcpy"),
    "sums": ("reduce", "norm", "sum"),
    "elementwise": ("elementwise",),
}
"""Parts of the names of kernels."""


def cases(*, dry: bool) -> list[Case]:
    recipes = (RECIPES[0], RECIPES[-1]) if dry else RECIPES
    return [
        *(Case(recipe.name, partial(_measure, recipe), recipe.seconds) for recipe in recipes),
        Case("1B, torchtitan's settings", _against_torchtitan, 60),
    ]


def _measure(recipe: Recipe, tools: Tools) -> Outcome:
    values, goals = _train(recipe, tools), dict(recipe.goal)
    if recipe.ratio_goal:
        name, other, goals[name] = recipe.ratio_goal
        before = tools.value("speed", other, "tokens/s")
        values |= {name: values["tokens/s"] / before} if before else {}
    note = ", ".join(f"{name} at least {least:.4g}" for name, least in goals.items())
    # What could not be compared has no verdict.
    if tools.dry or not goals or not goals.keys() <= values.keys():
        return Outcome(values, None, note)
    return Outcome(values, all(values[name] >= least for name, least in goals.items()), note)


def _train(recipe: Recipe, tools: Tools) -> dict[str, Any]:
    """Return what a run of a few steps measured."""
    document = document_of(recipe, tools)
    with _profile(tools, enabled=recipe.profiled) as profiler:
        trained = tools.engine.train(document, on_step=profiler.step if profiler else None)
    timed = trained.seconds[WARM_STEPS : WARM_STEPS + TIMED_STEPS]
    values = _rates(tools, document, median(timed)) | {
        "ms": 1000 * median(timed),
        "peak GiB": trained.peak_bytes / 2**30,
    }
    if profiler:
        values |= _groups(profiler, on_gpu=tools.engine.on_gpu)
    return values


def document_of(recipe: Recipe, tools: Tools) -> dict[str, Any]:
    """Return the spec of a recipe; its texts are written to the folder of the case."""
    steps = WARM_STEPS + TIMED_STEPS + 1 + (PROFILED_STEPS + 1 if recipe.profiled else 0)
    changes = {"compile": not tools.dry, "steps": steps, "log": {"every_steps": steps}}
    document = recipe.shape.document(dry=tools.dry, **changes, **recipe.changes)
    document["batch"] = document["batch"] | {"size": document["batch"]["micro_size"] * recipe.accumulation}
    if recipe.packed:
        length = TINY_LENGTH if tools.dry else recipe.shape.length
        tokens = 2 * steps * document["batch"]["size"] * length
        data = write_texts(tools.folder / "texts.jsonl", tokens=tokens, mean=length // MEAN_TEXT)
        document["data"] = {"source": "jsonl", "path": str(data), "eval_fraction": 0}
    return document


@contextmanager
def _profile(tools: Tools, *, enabled: bool) -> Iterator[torch.profiler.profile | None]:
    """Profile the last steps."""
    if not enabled:
        yield None
        return
    kind = torch.profiler.ProfilerActivity
    # A step is counted at its start, so the first call does not end one.
    schedule = torch.profiler.schedule(wait=WARM_STEPS + TIMED_STEPS + 1, warmup=1, active=PROFILED_STEPS)
    with torch.profiler.profile(
        activities=[kind.CUDA if tools.engine.on_gpu else kind.CPU], schedule=schedule
    ) as profiler:
        yield profiler


def _groups(profiler: torch.profiler.profile, *, on_gpu: bool) -> dict[str, float]:
    """Return the milliseconds of a step by group of kernels."""
    result: dict[str, float] = {}
    for event in profiler.key_averages():
        name = event.key.lower()
        group = next((group for group, parts in _GROUPS.items() if any(part in name for part in parts)), "other")
        time = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        result[f"ms, {group}"] = result.get(f"ms, {group}", 0.0) + time / 1000 / PROFILED_STEPS
    return dict(sorted(result.items(), key=lambda item: -item[1]))


def _rates(tools: Tools, document: dict[str, Any], seconds: float) -> dict[str, float]:
    """Return tokens per second, TFLOP/s of the model, and where the device's peak in bf16 is known, the share of it."""
    spec = tools.engine.resolve(document)
    task = select_task(spec)
    with torch.device("meta"):
        model = task.build_model()
    tokens = count_tokens(task, GlobalBatches(task.examples.train, spec.batch.size, seed=1).at(0))
    flops, peak = model_flops(task, model, spec.model), run_peak_flops(spec, tools.engine.ranks(spec).device)
    rates = {"tokens/s": tokens.tokens / seconds}
    if flops:
        rates["TFLOP/s"] = flops.of(spec.batch.size, tokens) / seconds / 1e12
        rates |= {"MFU": rates["TFLOP/s"] * 1e12 / peak} if peak else {}
    return rates


def _against_torchtitan(tools: Tools) -> Outcome:
    """Compare with a loop that shares no code with ours and has torchtitan's settings."""
    recipe = Recipe("1B", _1B, {"activation_checkpointing": "selective"})
    seconds = torchtitan.seconds_of_step(recipe.shape, tools, warm=WARM_STEPS, timed=TIMED_STEPS)
    values = _train(recipe, tools)
    values |= {"plain torch ms": 1000 * seconds, "ratio": 1000 * seconds / values["ms"]}
    return Outcome(values, None if tools.dry else values["ratio"] >= 1.0, "at least as fast as plain torch")
