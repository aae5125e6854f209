"""An adapter in peft's format from which a training starts (`lora.adapter`)."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.data_files import opened_path
from worker.engine.adapters import is_adapter, peft_name

Tensors = Mapping[str, torch.Tensor]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SHOWN = 5


def read_adapter(spec: TrainingSpec, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> Tensors | None:
    """Return the tensors of the spec's adapter by their names in peft's file; None if training starts without one.

    Raises:
        RefusedError: The folder holds no adapter that has the properties of the spec.
    """
    if spec.lora.adapter is None:
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(spec.lora.adapter)
    try:
        with open_adapter(folder, roots) as (config_file, weights):
            config = json.load(config_file)
            tensors: Tensors = load_file(f"/proc/self/fd/{weights.fileno()}")
    except (OSError, ValueError, SafetensorError) as error:
        raise RefusedError(
            f"lora.adapter: {folder} does not hold an adapter: {error}",
            f"Give a folder with {_CONFIG} and {_WEIGHTS}, as peft and Trainyard's exports write them.",
        ) from None
    _check_config(spec, folder, config)
    return tensors


@contextmanager
def open_adapter(folder: Path, roots: AllowedRoots) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open the configuration and the weights of an adapter.

    Raises:
        RefusedError: A file cannot be read, or leads out of the roots.
    """
    config, weights = (opened_path("lora.adapter", str(folder / name), roots) for name in (_CONFIG, _WEIGHTS))
    with config as first, weights as second:
        yield first, second


def _check_config(spec: TrainingSpec, folder: Path, config: Any) -> None:
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise RefusedError(f"lora.adapter: {folder} is not an adapter of LoRA")
    if config.get("bias", "none") != "none" or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise RefusedError(f"lora.adapter: {folder} has trained biases, or ranks of its own for some layers")
    properties = {
        "lora_rank": (spec.lora_rank, config.get("r")),
        "lora.alpha": (spec.lora.alpha, config.get("lora_alpha")),
        "lora.rslora": (spec.lora.rslora, bool(config.get("use_rslora"))),
        "lora.dora": (spec.lora.dora, bool(config.get("use_dora"))),
    }
    for field, (own, stored) in properties.items():
        if own != stored:
            raise RefusedError(
                f"{field}: is {json.dumps(own)}, and that of the adapter in {folder} is {json.dumps(stored)}",
                f"Set {field} to {json.dumps(stored)}.",
            )


def adapter_values(module: nn.Module, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the values of the adapter's parameters by their names in the module, sharded as they are.

    Raises:
        RefusedError: The adapter is of other layers than the module's, or has other shapes.
    """
    parameters = {name: p for name, p in module.named_parameters() if is_adapter(name)}
    names = {peft_name(name): name for name in parameters}
    for what, differing in (("lacks", names.keys() - tensors.keys()), ("also has", tensors.keys() - names.keys())):
        if differing:
            listed = ", ".join(sorted(differing)[:_SHOWN])
            raise RefusedError(
                f"lora.adapter: it is of other layers: it {what} {listed}",
                "Set lora.targets and lora.modules_to_save to those of its adapter_config.json.",
            )
    for stored, name in names.items():
        if tensors[stored].shape != parameters[name].shape:
            shapes = f"{list(tensors[stored].shape)} instead of {list(parameters[name].shape)}"
            raise RefusedError(f"lora.adapter: it is of another model: {stored} has the shape {shapes}")
    return {name: _like(parameters[name], tensors[stored]) for stored, name in names.items()}


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    value = value.to(device=parameter.device, dtype=torch.float32)
    if isinstance(parameter, DTensor):
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value
