"""Groups of parameters with their own weight decay and learning rate."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from trainyard.contract.problems import nearest_names
from trainyard.contract.spec.optimization import Optimizer
from worker.core.errors import RefusedError


def parameter_groups(spec: Optimizer, module: nn.Module) -> list[dict[str, Any]]:
    """Return an optimizer's groups of the parameters that require a gradient; a group with the rate `lr` comes first.

    Raises:
        RefusedError: a pattern of `lr_scale` matches no trained parameter.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for pattern in spec.lr_scale:
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise RefusedError(
                f"optimizer.lr_scale: `{pattern}` matches no trained parameter of the model",
                f"The closest: {nearest_names(pattern, trained)}.",
            )
    exempt = {id(parameter) for kind, parameter in _kinds(module) if kind in spec.no_decay}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        scale = next((factor for pattern, factor in spec.lr_scale.items() if fnmatchcase(name, pattern)), 1.0)
        decay = 0.0 if id(parameter) in exempt else spec.weight_decay
        groups.setdefault((scale, decay), []).append(parameter)
    ordered = sorted(groups.items(), key=lambda item: item[0][0] != 1.0)
    return [
        {"params": parameters, "lr": spec.lr * scale, "weight_decay": decay} for (scale, decay), parameters in ordered
    ]


def hidden_matrices(module: nn.Module) -> frozenset[int]:
    """Return the ids of the parameters for Muon: matrices, and filters of convolutions in two dimensions, of layers
    other than embeddings, norms and the output layer."""
    others = {id(parameter) for _, parameter in _kinds(module)} | {id(p) for p in output_parameters(module)}
    filters = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Conv2d)}
    return frozenset(
        id(parameter)
        for parameter in module.parameters()
        if id(parameter) not in others and (parameter.ndim == 2 or id(parameter) in filters)
    )


def output_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters of the output layer, with its adapters: the last layer if the model names none."""
    named: Any = getattr(module, "get_output_embeddings", None)
    if named is not None and isinstance(layer := named(), nn.Module):
        return layer.parameters()
    layers = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and ".lora_" not in f".{name}"
    ]
    # The layer inside of peft's wrapper, which also holds the adapters.
    return module.get_submodule(layers[-1].removesuffix(".base_layer")).parameters() if layers else iter(())


def _kinds(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter with its kind. Normalization layers are recognized by the names of their classes, since
    models define their own."""
    for layer in module.modules():
        norm = "norm" in type(layer).__name__.lower()
        for name, parameter in layer.named_parameters(recurse=False):
            if isinstance(layer, nn.Embedding):
                yield "embeddings", parameter
            elif norm:
                yield "norms", parameter
            elif name == "bias" or name.endswith("_bias"):
                yield "biases", parameter
