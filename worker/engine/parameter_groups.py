"""Groups of parameters with their own weight decay and learning rate."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from trainyard.contract.problems import nearest_names
from trainyard.contract.spec import sections
from worker.core.errors import RefusedError


def parameter_groups(spec: sections.Optimizer, module: nn.Module) -> list[dict[str, Any]]:
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
