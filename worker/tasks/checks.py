"""Whether what a task returns is what the engine asked for: known once it is called, told before the first step."""

from collections.abc import Mapping

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.errors import RefusedError


def check_model(spec: TrainingSpec, model: object) -> None:
    """Raises RefusedError unless build_model() returned a module."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise RefusedError(f"target `{spec.target}`: build_model() returned a {kind}, not a torch.nn.Module")


def check_losses(losses: object) -> None:
    """Of the first batch, before the first step.

    Raises:
        RefusedError: a loss is not one number, or nothing that is trained has a part in it.
    """
    if not isinstance(losses, Mapping):
        raise RefusedError(f"losses() returned a {type(losses).__name__}, not losses by name")
    for name, loss in losses.items():
        start = f"losses() returned for `{name}`" if name else "loss_sum() returned"
        if not isinstance(loss, torch.Tensor):
            raise RefusedError(f"{start} a {type(loss).__name__}, not a tensor")
        if loss.ndim:
            raise RefusedError(
                f"{start} a tensor of shape {list(loss.shape)}, not one number", "Sum the loss over the batch."
            )
        if not loss.requires_grad:
            raise RefusedError(
                f"{start} a loss without a gradient",
                "Compute it from the model's output, without detach(), item() or no_grad().",
            )
