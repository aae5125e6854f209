"""Next-token prediction on bytes."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.sections import BuiltinData, GptModel
from worker.data.sampler import Indices
from worker.data.stdlib import load_stdlib, windows
from worker.errors import RefusedError
from worker.tasks.base import Examples, Tensors
from worker.tasks.gpt import Gpt


class CausalLm:
    """Cross entropy in nats, summed over tokens."""

    def __init__(self, model: GptModel, data: BuiltinData) -> None:
        if model.vocab < 256:
            raise RefusedError(f"model.vocab is {model.vocab}, but the data are bytes", "Set model.vocab to 256.")
        if model.width % model.heads:
            raise RefusedError(f"model.width {model.width} is not a multiple of model.heads {model.heads}")
        self._model = model
        self.tokens_per_example = model.context
        rows = windows(load_stdlib(), model.context + 1)
        held_out = round(len(rows) * data.eval_fraction)
        self.examples = Examples((rows,), train=len(rows) - held_out, held_out=held_out)

    def build_model(self) -> nn.Module:
        return Gpt(self._model)

    def weight(self, indices: Indices) -> float:
        return float(len(indices) * self.tokens_per_example)

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        tokens = batch[0].long()
        logits = model(tokens[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        return {"eval/loss": self.loss_sum(model, batch)}
