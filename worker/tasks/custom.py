"""User-defined tasks: a base class, and loading of the function that builds the task."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.examples import Examples, Tensors
from worker.data.sampler import Indices
from worker.tasks.base import Task


class CustomTask:
    """Defines examples, model and loss; everything else has a default that can be overridden.

    `examples` must be set before `build` returns. A loss is a *sum* over the batch: the engine divides it by the
    `weight` of the whole global batch. Give either `loss_sum`, or `losses` where there are several. Where the module
    needs more than the spec's one optimizer, define `optimizers(module, spec)`, which returns them by name.
    """

    examples: Examples
    tokens_per_example = 0
    """The mean number of tokens per example, for throughput; 0 for a task without tokens."""
    shuffle = True
    """Whether each epoch has another order; if the spec has `data`, `data.shuffle` decides."""

    def build_model(self) -> nn.Module:
        """Return a new model. torch's generators are seeded from the spec, so every rank builds the same model."""
        raise NotImplementedError("a custom task defines build_model()")

    def weight(self, indices: Indices) -> float:
        """Return the divisor of the summed loss: the number of examples."""
        return float(len(indices))

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the loss summed over the examples of the batch: fp32, shape ()."""
        return torch.stack(list(self.losses(model, batch).values())).sum()

    def losses(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return several losses by name, each summed over the batch. Their gradients add up; each has its own curve."""
        return {}

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Return sums over held-out examples by metric name, `eval/loss` among them."""
        return {"eval/loss": self.loss_sum(model, batch)}


_REQUIRED_METHODS = ("build_model", "weight", "loss_sum", "evaluation_sums")


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
    _check(spec, task)
    result: Task = task
    return result


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


def _check(spec: TrainingSpec, task: object) -> None:
    """Raise RefusedError unless `task` has everything that the engine needs."""
    start = f"target `{spec.target}`: the returned object ({type(task).__name__})"
    missing = [name for name in _REQUIRED_METHODS if not callable(getattr(task, name, None))]
    if missing:
        raise RefusedError(f"{start} is not a task: it has no {', '.join(missing)}", "Derive it from CustomTask.")
    if isinstance(task, CustomTask):
        if type(task).build_model is CustomTask.build_model:
            raise RefusedError(f"{start} does not define build_model")
        if type(task).loss_sum is CustomTask.loss_sum and type(task).losses is CustomTask.losses:
            raise RefusedError(f"{start} defines neither loss_sum nor losses")
    examples = getattr(task, "examples", None)
    if examples is None or not all(hasattr(examples, name) for name in ("train", "held_out", "train_batch")):
        hint = "Set self.examples = Examples(tensors, train=..., held_out=...)."
        raise RefusedError(f"{start} has no `examples`", hint)
    if isinstance(examples, Examples):
        _check_examples(start, examples)
    if examples.train < 1:
        raise RefusedError(f"{start} has no example to train on: examples.train is {examples.train}")
    best = spec.checkpoint.keep_best
    needs_evaluation = {
        "evaluation.every_steps": spec.evaluation.every_steps is not None,
        "evaluation.first": spec.evaluation.first,
        "early_stopping": spec.early_stopping is not None,
        "checkpoint.keep_best": best is not None and best.metric.startswith("eval/"),
    }
    for field, is_set in needs_evaluation.items():
        if is_set and not examples.held_out:
            raise RefusedError(f"{field} is set, and {start} has no held-out examples")


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
