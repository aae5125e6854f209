"""The FLOPs of an example and the peak FLOP/s of a device, from which MFU is computed.

Peaks are dense (no sparsity), from NVIDIA's data sheets.
"""

import torch
from torch import nn

from trainyard.contract.spec.sections import GptModel, Model
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.tasks.base import Task

_TERA = 1e12

# (part of the device's name, {precision: TFLOP/s}); the first match counts.
_PEAK_TERAFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("B200", {"bf16": 2250, "fp16": 2250, "tf32": 1125, "fp32": 75}),
    ("H200", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("GH200", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H100 PCIe", {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51}),
    ("H100 NVL", {"bf16": 835, "fp16": 835, "tf32": 417, "fp32": 60}),
    ("H100", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("A100", {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5}),
    ("A40", {"bf16": 149.7, "fp16": 149.7, "tf32": 74.8, "fp32": 37.4}),
    ("A30", {"bf16": 165, "fp16": 165, "tf32": 82, "fp32": 10.3}),
    ("A10", {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2}),
    ("L40S", {"bf16": 362, "fp16": 362, "tf32": 183, "fp32": 91.6}),
    ("L4", {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3}),
    ("V100", {"fp16": 125, "fp32": 15.7}),
    ("T4", {"fp16": 65, "fp32": 8.1}),
)


def peak_flops(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of one device; None for an unknown device or precision. `tf32` affects fp32 only."""
    parts = device_name.replace("-", " ").split()
    for name, peaks in _PEAK_TERAFLOPS:
        if all(part in parts for part in name.split()):
            peak = peaks.get("tf32" if precision == "fp32" and tf32 else precision)
            return peak * _TERA if peak else None
    return None


def run_peak_flops(spec: TrainingSpec, device: torch.device) -> float | None:
    """Return the peak FLOP/s of all devices of a run; None if unknown, and on CPUs."""
    if device.type != "cuda":
        return None
    peak = peak_flops(torch.cuda.get_device_name(device), spec.precision, tf32=spec.tf32)
    return peak * spec.gpus if peak else None


def flops_per_example(task: Task, model: nn.Module, described: Model | None) -> float | None:
    """Return the FLOPs of one example in forward and backward, without recomputation; None if unknown.

    A task may define `flops_per_example(model)`. For text: 6 N T + 12 L W T^2 (PaLM, arXiv:2204.02311, appendix B) with
    N parameters in matrix products, T tokens, L layers of width W. A frozen parameter counts 4 instead of 6: it has no
    gradient.
    """
    own = getattr(task, "flops_per_example", None)
    if own is not None:
        return float(own(model))
    tokens = task.tokens_per_example
    if not tokens:
        return None
    lookups = _lookup_tables(model)
    uses = sum(p.numel() * (6 if p.requires_grad else 4) for p in model.parameters() if id(p) not in lookups)
    layers, width = _attention(model, described)
    return float(uses) * tokens + 12.0 * layers * width * tokens**2


def _lookup_tables(model: nn.Module) -> set[int]:
    """Return the ids of embedding weights that only select rows. The largest may also be the head."""
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables = {id(module.weight) for module in embeddings}
    if embeddings:
        largest = max(embeddings, key=lambda module: module.num_embeddings)
        heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == largest.num_embeddings]
        if all(head.weight is largest.weight for head in heads):
            tables.discard(id(largest.weight))
    return tables


def _attention(model: nn.Module, described: Model | None) -> tuple[int, int]:
    """Return layers and width; 0 where unknown."""
    if isinstance(described, GptModel):
        return described.layers, described.width
    config = getattr(model, "config", None)
    return int(getattr(config, "num_hidden_layers", 0) or 0), int(getattr(config, "hidden_size", 0) or 0)
