"""Selects the parameters that a run trains: all, some by name, or adapters only."""

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from trainyard.contract.problems import nearest_names
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError


def freeze_parameters(spec: TrainingSpec, model: nn.Module) -> None:
    """Freeze the parameters that the spec does not train, and add its adapters. Called before the model is sharded.

    Raises:
        RefusedError: A pattern matches nothing, the adapters do not fit the model, or no parameter is trained.
    """
    if spec.lora_rank is not None:
        from worker.engine.adapters import add_adapters

        add_adapters(model, spec)
    elif spec.trainable is not None:
        freeze_except(model, spec.trainable)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RefusedError(
            "the model has no parameter to train", "Set requires_grad on some parameters, or set `trainable`."
        )


def freeze_except(model: nn.Module, patterns: Collection[str]) -> None:
    """Freeze every parameter that no pattern matches under any of its names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    trained = {id(named[name]) for pattern in patterns for name in _matched(pattern, named)}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def _matched(pattern: str, names: Collection[str]) -> list[str]:
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        raise RefusedError(
            f"trainable: `{pattern}` matches no parameter of the model",
            f"The closest: {nearest_names(pattern, names)}.",
        )
    return matching


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Return every name of every frozen parameter, including the further names of tied parameters."""
    return frozenset(name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad)
