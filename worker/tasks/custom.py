"""A task of the user's own: a convenient base, and the finding of the function that builds it."""

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
    """Say what the examples, the model and the loss are; the rest has a default that can be overridden.

    `examples` must be set before `build` returns. A loss is a *sum* over the batch: the engine divides it by the
    `weight` of the whole global batch. Give either `loss_sum`, or `losses` where there are several. Where the module
    needs more than the spec's one optimizer, define `optimizers(module, spec)`, which returns them by name.
    """

    examples: Examples
    tokens_per_example = 0
    """For throughput in tokens; 0 where the word means nothing."""
    shuffle = True
    """Whether each epoch has an order of its own; `data.shuffle` decides where the spec has `data`."""

    def build_model(self) -> nn.Module:
        """A fresh model. torch's generators are seeded from the spec, so that every rank builds the same one."""
        raise NotImplementedError("a custom task defines build_model()")

    def weight(self, indices: Indices) -> float:
        """What the summed loss of these examples is divided by: their number."""
        return float(len(indices))

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """The loss, summed over the examples of the batch."""
        return torch.stack(list(self.losses(model, batch).values())).sum()

    def losses(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Several losses by name, each summed over the batch. Their gradients add up; each has its own curve."""
        return {}

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Sums over held-out examples by metric name, `eval/loss` among them."""
        return {"eval/loss": self.loss_sum(model, batch)}


_ASKED_FOR = ("build_model", "weight", "loss_sum", "evaluation_sums")


def load_custom(spec: TrainingSpec) -> Task:
    """The task that the function named by `target` builds.

    Raises:
        RefusedError: there is no such function, it raised, or what it returned is no task.
    """
    build = _find(spec)
    # Data that is drawn while building must be the same on every rank.
    seed_generators(spec.seed)
    try:
        task = build(spec)
    except Exception as error:
        _refuse(spec, "raised", error)
    _check(spec, task)
    found: Task = task
    return found


def _find(spec: TrainingSpec) -> Callable[[TrainingSpec], Any]:
    module_name, _, path = (spec.target or "").partition(":")
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            raise RefusedError(
                f"target `{spec.target}`: there is no module `{module_name}`",
                "Upload the folder that holds it (trainyard submit --code FOLDER), or install it for the workers.",
            ) from None
        _refuse(spec, f"importing `{module_name}` failed", error)
    for name in path.split("."):
        if not hasattr(found, name):
            raise RefusedError(f"target `{spec.target}`: module `{module_name}` has no `{path}`")
        found = getattr(found, name)
    if not callable(found):
        raise RefusedError(f"target `{spec.target}`: is a {type(found).__name__}, not a function")
    build: Callable[[TrainingSpec], Any] = found
    return build


def _refuse(spec: TrainingSpec, what: str, error: Exception) -> NoReturn:
    """The user's own traceback is the cause, and is told with it."""
    raise RefusedError(f"target `{spec.target}`: {what}: {type(error).__name__}: {error}") from error


def _check(spec: TrainingSpec, task: object) -> None:
    """Raises RefusedError unless `task` has everything that the engine asks of one."""
    start = f"target `{spec.target}`: what it returned ({type(task).__name__})"
    missing = [name for name in _ASKED_FOR if not callable(getattr(task, name, None))]
    if missing:
        raise RefusedError(f"{start} is no task: it has no {', '.join(missing)}", "Derive it from CustomTask.")
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
    evaluated = {
        "evaluation.every_steps": spec.evaluation.every_steps is not None,
        "checkpoint.keep_best": best is not None and best.metric.startswith("eval/"),
    }
    for field, wanted in evaluated.items():
        if wanted and not examples.held_out:
            raise RefusedError(f"{field} is set, and {start} holds nothing out for evaluation")


def _check_examples(start: str, examples: Examples) -> None:
    wanted = examples.train + examples.held_out
    for place, tensor in enumerate(examples.tensors):
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim or len(tensor) != wanted:
            size = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise RefusedError(
                f"{start} has examples that do not fit: tensors[{place}] is {size}, "
                f"and train + held_out is {wanted} examples"
            )
