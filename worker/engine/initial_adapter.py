"""An adapter in peft's format from which a training starts (`lora.adapter`)."""

import json
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.layer_patterns import patterns_of, value_of
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.data_files import opened_path
from worker.engine.adapter_rules import (
    MERGE,
    PREFIX,
    Tensors,
    alphas_of,
    layers_of,
    normalised,
    peft_name,
    ranks_of,
    require_continuable,
    whole_modules_of,
)
from worker.engine.adapters import is_adapter
from worker.tasks.sentence_modules import check_sentence_modules

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_SHOWN = 5


def read_adapter(spec: TrainingSpec, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> Tensors | None:
    """Return the tensors of the spec's adapter by their names in peft's file; None if the spec has none.

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
            require_continuable(str(folder), config)
            tensors = normalised(load_file(f"/proc/self/fd/{weights.fileno()}"))
        alphas = alphas_of(tensors, config)
    except (OSError, ValueError, SafetensorError) as error:
        raise RefusedError(
            f"lora.adapter: {folder} does not hold an adapter: {error}",
            f"Give a folder with {_CONFIG} and {_WEIGHTS}, as peft and Trainyard's exports write them.",
        ) from None
    _check_properties(spec, folder, config)
    if spec.task_kind.makes_vectors:
        check_sentence_modules("lora.adapter", folder, spec.embedding.pooling, roots)
    _check_layers("lora.rank_pattern", folder, spec.lora.rank_pattern, spec.lora_rank, ranks_of(tensors))
    _check_layers("lora.alpha_pattern", folder, spec.lora.alpha_pattern, spec.lora.alpha, alphas)
    return tensors


@contextmanager
def open_adapter(folder: Path, roots: AllowedRoots) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open the configuration and the weights of an adapter.

    Raises:
        RefusedError: A file cannot be read, or leads out of the roots.
    """
    config = opened_path("lora.adapter", str(folder / _CONFIG), roots)
    with config as first:
        if not (folder / _WEIGHTS).exists() and (folder / _PICKLE).exists():
            raise RefusedError(
                f"lora.adapter: {folder} has its weights in {_PICKLE}, a pickle, which is not read",
                f"Load the adapter with peft and save it again with save_pretrained, which writes {_WEIGHTS}.",
            )
        with opened_path("lora.adapter", str(folder / _WEIGHTS), roots) as second:
            yield first, second


def _check_properties(spec: TrainingSpec, folder: Path, config: Mapping[str, Any]) -> None:
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


def _check_layers(
    field: str, folder: Path, patterns: Mapping[str, Any], default: Any, stored: Mapping[str, Any]
) -> None:
    """Raise RefusedError: the spec gives a layer of the adapter another rank or alpha than its files."""
    for layer, value in stored.items():
        if (own := value_of(layer, patterns, default)) != value:
            setting = json.dumps(patterns_of(stored, default)).replace(".0,", ",").replace(".0}", "}")
            raise RefusedError(
                f"{field}: gives `{layer}` {own:g}, and that of the adapter in {folder} is {value:g}",
                f"Set {field} to {setting}.",
            )


def adapter_values(module: nn.Module, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the values of the adapter's parameters by their names in the module, sharded like the
    parameters. A collective if the module is sharded.

    Raises:
        RefusedError: The adapter is of other layers than the module's, or has other shapes.
    """
    parameters = {name: p for name, p in module.named_parameters() if is_adapter(name)}
    names = {peft_name(name): name for name in parameters}
    tensors = _without_copies(module, tensors, names.keys())
    if names.keys() != tensors.keys():
        raise _different_layers(module, names.keys(), tensors.keys())
    for stored, name in names.items():
        if tensors[stored].shape != parameters[name].shape:
            shapes = f"{list(tensors[stored].shape)} instead of {list(parameters[name].shape)}"
            raise RefusedError(
                f"lora.adapter: it is of another model: {stored} has the shape {shapes}",
                "Name the base model with which it was trained, with the same vocabulary, in model.path.",
            )
    return {name: _like(parameters[name], tensors[stored]) for stored, name in names.items()}


def _without_copies(module: nn.Module, tensors: Tensors, own: Set[str]) -> Tensors:
    """Return the tensors without copies of frozen parameters, such as the embeddings that peft saves beside an adapter
    with `save_embedding_layers`."""
    frozen = {f"{PREFIX}{name}": p for name, p in module.named_parameters(remove_duplicate=False)}
    copies = {name for name in tensors.keys() - own if name in frozen and _is_copy(tensors[name], frozen[name])}
    return {name: tensor for name, tensor in tensors.items() if name not in copies}


def _is_copy(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Return whether a tensor has the values of a parameter, in either type."""
    if tensor.shape != parameter.shape:
        return False
    value = (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().cpu()
    return torch.equal(value.to(tensor.dtype), tensor) or torch.equal(tensor.to(value.dtype), value)


def _different_layers(module: nn.Module, own: Set[str], stored: Set[str]) -> RefusedError:
    """Return the error of an adapter whose tensors have other names than the tensors of the model's adapters."""
    differing = {"lacks": own - stored, "also has": stored - own}
    what, names = next((what, names) for what, names in differing.items() if names)
    message = f"lora.adapter: it is of other layers: it {what} {', '.join(sorted(names)[:_SHOWN])}"
    modules = _modules(module)
    layers, whole = list(layers_of(stored)), list(whole_modules_of(stored))
    if absent := [name for name in (*layers, *whole) if name not in modules]:
        return RefusedError(
            f"lora.adapter: it is of another model: the model has no layer `{absent[0]}`",
            "Name the base model with which it was trained in model.path.",
        )
    if unknown := [name for name in stored if not _is_known(name, layers, whole)]:
        return RefusedError(
            f"lora.adapter: it has tensors that no training here has, such as {unknown[0]}; layers are adapted, and "
            "embeddings are not",
            MERGE,
        )
    hints = []
    if set(layers) != set(layers_of(own)):
        hints.append(f"lora.targets to {json.dumps(_named(layers, modules))}")
    if set(whole) != set(whole_modules_of(own)):
        hints.append(f"lora.modules_to_save to {json.dumps(_named(whole, modules))}")
    return RefusedError(message, f"Set {' and '.join(hints)}." if hints else None)


def _is_known(name: str, layers: Collection[str], whole: Collection[str]) -> bool:
    bare = name.removeprefix(PREFIX)
    layer = bare.partition(".lora_")[0]
    return bare.rpartition(".")[0] in whole if layer == bare else layer in layers


def _modules(module: nn.Module) -> list[str]:
    """Return the names of the modules of the base model, without its adapters."""
    names = (name.replace(".base_layer", "").replace(".original_module", "") for name, _ in module.named_modules())
    return list(dict.fromkeys(name for name in names if ".lora_" not in name and ".modules_to_save" not in name))


def _named(chosen: Collection[str], modules: Collection[str]) -> list[str]:
    """Return patterns that match these modules and no others: last parts of names where all of them are chosen."""
    chosen_names = set(chosen)
    others = {name.rpartition(".")[2] for name in modules if name not in chosen_names}
    parts = {name: name.rpartition(".")[2] for name in chosen}
    return sorted({name if part in others else part for name, part in parts.items()})


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    value = value.to(device=parameter.device, dtype=torch.float32)
    if isinstance(parameter, DTensor):
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value
