"""Phase `speed`: tokens per second and MFU of each shape, in turns with a bare loop of the same model."""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.gpu import finetuning, torchtitan
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, Shape
from worker.core.random_state import seed_generators
from worker.data.examples import Tensors
from worker.data.sampler import GlobalBatches
from worker.engine.flops import model_flops, run_peak_flops
from worker.tasks.base import Task, count_tokens
from worker.tasks.select import select_task

STEPS, WARM_STEPS, DRY_STEPS = 12, 4, 6
REQUIRED_RATIO = 0.98
"""Trainyard's speed relative to the bare loop."""
REQUIRED_FP8_RATIO = 1.0
"""The speed in fp8 relative to the bare loop in bf16."""
REQUIRED_MFU = {"1B": 0.56, "3B": 0.60}
BYTES_PER_PARAMETER = 16
"""Weights, gradients and two moments in fp32."""


def cases(*, dry: bool) -> list[Case]:
    ways: dict[str, dict[str, Any]] = {"eager": {"compile": False}, "compiled": {"compile": True}}
    ways["fp8 compiled"] = {"compile": True, "precision": "fp8"}
    titan = {"compile": not dry, "activation_checkpointing": "selective"}
    shapes = SHAPES[:1] if dry else SHAPES
    return [
        *(
            Case(f"{shape.name}, {way}", _measure(shape, changes))
            for shape in shapes
            for way, changes in ways.items()
            if not dry or way == "eager"
        ),
        *(Case(f"{shape.name}, torchtitan's settings", _measure(shape, titan, torchtitan.prepare)) for shape in shapes),
        *finetuning.cases(dry=dry),
    ]


def _compile_whole(model: nn.Module, task: Task, *, compiled: bool) -> Callable[[Tensors], torch.Tensor]:
    if compiled:
        model.compile()
    return lambda batch: task.loss_sum(model, batch)


def _measure(shape: Shape, changes: dict[str, Any], prepare: Callable[..., Any] = _compile_whole) -> Any:
    def run(tools: Tools) -> Outcome:
        document = shape.document(dry=tools.dry, steps=DRY_STEPS if tools.dry else STEPS, **changes)
        if problem := _too_large(tools, document):
            return Outcome({}, None, problem)
        ours, bare = [], []
        values: dict[str, Any] = {}
        for _ in range(1 if tools.dry else 2):
            trained = tools.engine.train(document)
            ours.append(median(trained.seconds[WARM_STEPS:]))
            values["peak GiB"] = trained.peak_bytes / 2**30
            bare.append(_bare_loop(tools, document, prepare))
        rates, ratio = _rates(tools, document, min(ours)), min(bare) / min(ours)
        share = rates.get("MFU")
        values |= rates | {"to the bare loop": ratio}
        in_fp8 = document["precision"] == "fp8"
        required = REQUIRED_MFU.get(shape.name, 0.0) if document["compile"] and not in_fp8 else 0.0
        required_ratio = REQUIRED_FP8_RATIO if in_fp8 else REQUIRED_RATIO
        passed = None if tools.dry else ratio >= required_ratio and (share or 0.0) >= required
        note = f"at least {required_ratio} of the bare loop{' in bf16' if in_fp8 else ''}, MFU at least {required:.0%}"
        return Outcome(values, passed, note)

    return run


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


def _too_large(tools: Tools, document: dict[str, Any]) -> str:
    """Return why a shape is not run, or an empty text."""
    if not tools.engine.on_gpu:
        return ""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in select_task(tools.engine.resolve(document)).build_model().parameters())
    needed, memory = parameters * BYTES_PER_PARAMETER, torch.cuda.get_device_properties(0).total_memory
    if needed < memory:
        return ""
    return f"not run: its state of {needed / 2**30:.0f} GiB exceeds the device's {memory / 2**30:.0f} GiB"


def _bare_loop(tools: Tools, document: dict[str, Any], prepare: Callable[..., Any]) -> float:
    """Return the median seconds of a step of plain torch: autocast to bf16, clipping, fused AdamW, the same
    batches."""
    spec = tools.engine.resolve(document)
    task, device = select_task(spec), tools.engine.ranks(spec).device
    seed_generators(1)
    gc.collect()
    model = task.build_model().to(device)
    loss_sum = prepare(model, task, compiled=spec.compile is True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.optimizer.lr, weight_decay=0.0, fused=True)
    batches = GlobalBatches(task.examples.train, spec.batch.size, seed=1)
    marks = []
    for step in range(document["steps"]):
        indices = batches.at(step)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_sum(task.examples.train_batch(indices, device)) / task.weight(indices)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
    del model, optimizer, loss, loss_sum
    return median(after - before for before, after in zip(marks[WARM_STEPS - 1 :], marks[WARM_STEPS:], strict=False))
