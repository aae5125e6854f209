"""The FLOPs of an example and the peak FLOP/s of a device, from which MFU is computed.

Peaks are dense (no sparsity) and accumulate in fp32, from the makers' data sheets.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainyard.contract.spec.decoders import BuiltinDecoder
from trainyard.contract.spec.sections import Model
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.data.examples import BatchTokens
from worker.engine.parameter_groups import output_parameters
from worker.engine.strategies.units import layers
from worker.tasks.base import Task

_TERA = 1e12
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names under which configurations of transformers give the number of experts."""

# (part of the device's name, {precision: TFLOP/s}); the first match counts.
_PEAK_TERAFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("GB200", {"fp8": 5000, "bf16": 2500, "fp16": 2500, "tf32": 1250, "fp32": 80}),
    ("B300", {"fp8": 4500, "bf16": 2250, "fp16": 2250, "tf32": 1125, "fp32": 75}),
    ("B200", {"fp8": 4500, "bf16": 2250, "fp16": 2250, "tf32": 1125, "fp32": 75}),
    ("B100", {"fp8": 3500, "bf16": 1750, "fp16": 1750, "tf32": 875, "fp32": 60}),
    ("H200", {"fp8": 1978.9, "bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("GH200", {"fp8": 1978.9, "bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H100 PCIe", {"fp8": 1513, "bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51}),
    ("H100 NVL", {"fp8": 1671, "bf16": 835, "fp16": 835, "tf32": 417, "fp32": 60}),
    ("H100", {"fp8": 1978.9, "bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H800", {"fp8": 1978.9, "bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H20", {"fp8": 296, "bf16": 148, "fp16": 148, "tf32": 74, "fp32": 44}),
    ("A100", {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5}),
    ("A6000", {"bf16": 154.8, "fp16": 154.8, "tf32": 77.4, "fp32": 38.7}),
    ("A40", {"bf16": 149.7, "fp16": 149.7, "tf32": 74.8, "fp32": 37.4}),
    ("A30", {"bf16": 165, "fp16": 165, "tf32": 82, "fp32": 10.3}),
    ("A10", {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2}),
    ("L40S", {"fp8": 733, "bf16": 362, "fp16": 362, "tf32": 183, "fp32": 91.6}),
    ("L40", {"fp8": 362, "bf16": 181, "fp16": 181, "tf32": 90.5, "fp32": 90.5}),
    ("L4", {"fp8": 242.5, "bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3}),
    ("6000 Ada", {"fp8": 728.5, "bf16": 364.2, "fp16": 364.2, "tf32": 182.1, "fp32": 91.1}),
    ("RTX 5090", {"fp8": 419, "bf16": 209.5, "fp16": 209.5, "tf32": 104.8, "fp32": 104.8}),
    ("RTX 4090", {"fp8": 330.3, "bf16": 165.2, "fp16": 165.2, "tf32": 82.6, "fp32": 82.6}),
    ("MI300X", {"fp8": 2614.9, "bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4}),
    ("V100", {"fp16": 125, "fp32": 15.7}),
    ("T4", {"fp16": 65, "fp32": 8.1}),
)


def peak_flops(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of a device; None for an unknown device or precision. `tf32` affects fp32 only."""
    parts = device_name.replace("-", " ").split()
    for name, peaks in _PEAK_TERAFLOPS:
        if all(part in parts for part in name.split()):
            peak = peaks.get("tf32" if precision == "fp32" and tf32 else precision)
            return peak * _TERA if peak else None
    return None


def run_peak_flops(spec: TrainingSpec, device: torch.device) -> float | None:
    """Return the peak FLOP/s of all devices of a run; None if unknown, and on CPUs.

    With fp8 it is the peak in bf16, in which the head and attention compute: a share above 1 is possible, and shares of
    runs in bf16 and fp8 are comparable.
    """
    if device.type != "cuda":
        return None
    precision = "bf16" if spec.precision_kind.converts_linear_layers else spec.precision
    peak = peak_flops(torch.cuda.get_device_name(device), precision, tf32=spec.tf32)
    return peak * spec.gpus if peak else None


@dataclass(frozen=True)
class ModelFlops:
    """The FLOPs of forward and backward, without recomputation."""

    per_example: float = 0.0
    per_token: float = 0.0
    per_target: float = 0.0
    """For each token whose logits are needed."""
    per_square: float = 0.0
    """For each pair of tokens of a sequence that attends to itself."""

    def of(self, examples: int, batch: BatchTokens) -> float:
        """Return the FLOPs of a batch."""
        targets = batch.tokens if batch.targets is None else batch.targets
        of_tokens = self.per_token * batch.tokens + self.per_target * targets + self.per_square * batch.squares
        return self.per_example * examples + of_tokens


def model_flops(task: Task, model: nn.Module, described: Model | None) -> ModelFlops | None:
    """Return the FLOPs of the model in training; None if unknown.

    A task may define `flops_per_example(model)`. For text: 6 N T + 12 L W T^2 (PaLM, arXiv:2204.02311, appendix B) with
    N parameters in matrix products, T tokens, L layers with heads of W dimensions in all. Not counted are gradients of
    frozen parameters, the backward below the first trained layer, the experts that a token is not sent to, and the head
    where a token is no target.
    """
    if task.flops_per_example is not None:
        return ModelFlops(per_example=float(task.flops_per_example(model)))
    if not task.tokens_per_example:
        return None
    lookups, share = _lookup_tables(model), _active_share(model)
    attention, blocks = _attention(model, described), _blocks(model)
    head = {id(parameter) for parameter in output_parameters(model)}
    products = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        if id(parameter) in lookups:
            continue
        factor = 6 if parameter.requires_grad else 2 if blocks.is_below(name) else 4
        products[id(parameter) in head] += factor * parameter.numel() * (share if ".experts." in name else 1.0)
    below = min(blocks.first_trained, attention.layers)
    scores = (4.0 * below + 12.0 * (attention.layers - below)) * attention.width
    return ModelFlops(per_token=products[False], per_target=products[True], per_square=scores)


@dataclass(frozen=True)
class _Blocks:
    """The layers of a model in the order of its forward."""

    names: tuple[str, ...]
    first_trained: int
    """The index of the first layer with a trained parameter; 0 where parameters before the layers are trained."""

    def is_below(self, parameter: str) -> bool:
        """Return whether a parameter belongs to a layer through which no gradient flows."""
        return any(parameter.startswith(f"{name}.") for name in self.names[: self.first_trained])


def _blocks(model: nn.Module) -> _Blocks:
    names = tuple(layers(model))
    trained = [any(parameter.requires_grad for parameter in model.get_submodule(name).parameters()) for name in names]
    before = any(module.weight.requires_grad for module in model.modules() if isinstance(module, nn.Embedding))
    return _Blocks(names, 0 if before else trained.index(True) if True in trained else len(names))


def _active_share(model: nn.Module) -> float:
    """Return the part of a layer's experts that a token is sent to."""
    config = _text_config(model)
    experts = next((n for key in _EXPERTS if (n := getattr(config, key, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / experts if chosen and experts else 1.0


def _text_config(model: nn.Module) -> Any:
    """Return the configuration of a transformers model's language part, or None."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


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


@dataclass(frozen=True)
class _Attention:
    layers: int
    width: int
    """Heads times the dimensions of a head, which in some models differs from the width of the residual stream."""


def _attention(model: nn.Module, described: Model | None) -> _Attention:
    """Return the sizes of the attention; 0 where unknown."""
    if isinstance(described, BuiltinDecoder):
        return _Attention(described.layers, described.width)
    config = _text_config(model)
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    of_head = int(getattr(config, "head_dim", 0) or 0)
    return _Attention(int(getattr(config, "num_hidden_layers", 0) or 0), heads * of_head or hidden)
