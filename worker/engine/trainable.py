"""Which parameters a run trains: all, some by name, or adapters beside a frozen model."""

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from trainyard.contract.problems import nearest_names
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError


def choose_trainable(spec: TrainingSpec, model: nn.Module) -> None:
    """Freeze what the spec does not train, and add its adapters. Before the model is placed or sharded.

    Raises:
        RefusedError: a pattern matches nothing, the adapters do not fit the model, or nothing is left to train.
    """
    if spec.lora_rank is not None:
        from worker.engine.adapters import add_adapters

        add_adapters(model, spec)
    elif spec.trainable is not None:
        train_only(model, spec.trainable)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RefusedError(
            "the model has no parameter to train", "Set requires_grad on what is to be trained, or say `trainable`."
        )


def train_only(model: nn.Module, patterns: Collection[str]) -> None:
    """Freeze every parameter that no pattern matches by any of its names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    wanted = {id(named[name]) for pattern in patterns for name in _matched(pattern, named)}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in wanted)


def _matched(pattern: str, names: Collection[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise RefusedError(
            f"trainable: `{pattern}` matches no parameter of the model",
            f"The closest: {nearest_names(pattern, names)}.",
        )
    return found


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Every name of every frozen parameter, those of tied ones included."""
    return frozenset(name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad)
