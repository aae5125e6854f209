"""Regression with a plain multi-layer perceptron on generated data."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.sections import BuiltinData, MlpModel
from worker.data.builtin import make_parity
from worker.data.examples import Examples, Tensors
from worker.tasks.base import Task

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "none": nn.Identity}


def mlp(sizes: tuple[int, ...], activation: str) -> nn.Sequential:
    """Return linear layers with biases, and the activation between them: (batch, sizes[0]) to (batch, sizes[-1])."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class Regression(Task):
    """Squared error, averaged over outputs and summed over examples."""

    def __init__(self, model: MlpModel, data: BuiltinData, seed: int) -> None:
        self._model = model
        x, y = make_parity(data.examples, model.sizes[0], model.sizes[-1], seed)
        held_out = round(len(x) * data.eval_fraction)
        self.examples = Examples((x, y), train=len(x) - held_out, held_out=held_out)

    def build_model(self) -> nn.Module:
        return mlp(self._model.sizes, self._model.activation)

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(model(x).float(), y, reduction="sum") / y.shape[1]

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        return {"eval/loss": self.loss_sum(model, batch)}
