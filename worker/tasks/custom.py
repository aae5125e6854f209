"""User-defined tasks: a base class, and loading of the function that builds the task."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.examples import Examples, Tensors
from worker.tasks.base import Task


class CustomTask(Task):
    """Defines examples, model and loss; everything else has a default that can be overridden.

    `examples` must be set before `build` returns. A loss is a *sum* over the batch: the engine divides it by the
    `weight` of the whole global batch. Give either `loss_sum`, or `losses` where there are several. Where the module
    needs more than the spec's single optimizer, define `optimizers(module, spec)`, which returns them by name.
    """

    def build_model(self) -> nn.Module:
        """Return a new model. torch's generators are seeded from the spec, so every rank builds the same model."""
        raise NotImplementedError("a custom task defines build_model()")

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the loss summed over the examples of the batch: fp32, shape ()."""
        return torch.stack(list(self.losses(model, batch).values())).sum()

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return sums over held-out examples by metric name, `eval/loss` among them."""
        return {"eval/loss": self.loss_sum(model, batch)}


_REQUIRED_METHODS = ("build_model", "weight", "loss_sum", "evaluation_sums")
_REQUIRED_OF_EXAMPLES = ("train", "held_out", "train_batch")


def load_custom(spec: TrainingSpec) -> Task:
    """Return the task that the function `target` builds.

    Raises:
        RefusedError: There is no such function, it raised, or it did not return a task.
    """
    build = _find(spec)
    # Random data drawn while building must be the same on every rank.
    seed_generators(spec.seed)
    try:
        task = build(spec)
    except Exception as error:
        _refuse(spec, "raised", error)
    examples = _check(spec, task)
    if isinstance(task, Task) and isinstance(examples, Examples):
        return task
    return _AdoptedTask(task, examples if isinstance(examples, Examples) else _AdoptedExamples(examples))


class _Adopted:
    """Stands for a user's object that is not derived from our base class: each member is the object's, or has the
    default of the base class if the object lacks it."""

    def __init__(self, own: object) -> None:
        self.__dict__["_own"] = own

    def __getattribute__(self, name: str) -> Any:
        members = object.__getattribute__(self, "__dict__")
        hidden = name in members or name.startswith("__")
        own = None if hidden else getattr(members["_own"], name, None)
        return object.__getattribute__(self, name) if own is None else own


class _AdoptedExamples(_Adopted, Examples):
    tensors: Tensors = ()
    held_out_sets: Mapping[str, int] = MappingProxyType({})


class _AdoptedTask(_Adopted, CustomTask):
    def __init__(self, own: object, examples: Examples) -> None:
        super().__init__(own)
        self.examples = examples


def _find(spec: TrainingSpec) -> Callable[[TrainingSpec], Any]:
    module_name, _, path = (spec.target or "").partition(":")
    try:
        target: Any = import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            raise RefusedError(
                f"target `{spec.target}`: there is no module `{module_name}`",
                "Upload the folder that holds it (trainyard submit --code FOLDER), or install it for the workers.",
            ) from None
        _refuse(spec, f"importing `{module_name}` failed", error)
    for name in path.split("."):
        if not hasattr(target, name):
            raise RefusedError(f"target `{spec.target}`: module `{module_name}` has no `{path}`")
        target = getattr(target, name)
    if not callable(target):
        raise RefusedError(f"target `{spec.target}`: is a {type(target).__name__}, not a function")
    build: Callable[[TrainingSpec], Any] = target
    return build


def _refuse(spec: TrainingSpec, action: str, error: Exception) -> NoReturn:
    """Raise RefusedError with the user's exception as its cause, so that the traceback is reported."""
    raise RefusedError(f"target `{spec.target}`: {action}: {type(error).__name__}: {error}") from error


def _check(spec: TrainingSpec, built: object) -> Any:
    """Return the examples of a user's object. Raise RefusedError unless it has everything that the engine needs."""
    start = f"target `{spec.target}`: the returned object ({type(built).__name__})"
    missing = [name for name in _REQUIRED_METHODS if not callable(getattr(built, name, None))]
    if missing:
        raise RefusedError(f"{start} is not a task: it has no {', '.join(missing)}", "Derive it from CustomTask.")
    if isinstance(built, CustomTask):
        if type(built).build_model is CustomTask.build_model:
            raise RefusedError(f"{start} does not define build_model")
        if type(built).loss_sum is CustomTask.loss_sum and type(built).losses is CustomTask.losses:
            raise RefusedError(f"{start} defines neither loss_sum nor losses")
    own = getattr(built, "examples", None)
    if own is None or not all(hasattr(own, name) for name in _REQUIRED_OF_EXAMPLES):
        hint = "Set self.examples = Examples(tensors, train=..., held_out=...)."
        raise RefusedError(f"{start} has no `examples`", hint)
    if isinstance(own, Examples):
        _check_examples(start, own)
    if own.train < 1:
        raise RefusedError(f"{start} has no example to train on: examples.train is {own.train}")
    best = spec.checkpoint.keep_best
    needs_evaluation = {
        "evaluation.every_steps": spec.evaluation.every_steps is not None,
        "evaluation.first": spec.evaluation.first,
        "early_stopping": spec.early_stopping is not None,
        "checkpoint.keep_best": best is not None and best.metric.startswith("eval/"),
    }
    for field, is_set in needs_evaluation.items():
        if is_set and not own.held_out:
            raise RefusedError(f"{field} is set, and {start} has no held-out examples")
    return own


def _check_examples(start: str, examples: Examples) -> None:
    expected = examples.train + examples.held_out
    for index, tensor in enumerate(examples.tensors):
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim or len(tensor) != expected:
            size = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise RefusedError(
                f"{start} has inconsistent examples: tensors[{index}] is {size}, "
                f"and train + held_out is {expected} examples"
            )
    sets = examples.held_out_sets
    if sets and (sum(sets.values()) != examples.held_out or min(sets.values()) < 1):
        raise RefusedError(
            f"{start} has inconsistent examples: held_out_sets has {dict(sets)}, and held_out is {examples.held_out}",
            "Give each set at least one example; together they are the held-out examples.",
        )
