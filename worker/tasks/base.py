"""What the engine asks of a task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from worker.data.sampler import Indices

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Examples:
    """Tensors whose first dimension counts examples: the front for training, the tail held out."""

    tensors: Tensors
    train: int
    held_out: int

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        rows = torch.from_numpy(indices)
        return tuple(tensor[rows].to(device, non_blocking=True) for tensor in self.tensors)

    def held_out_batch(self, indices: Indices, device: torch.device) -> Tensors:
        return self.train_batch(indices + self.train, device)


class Task(Protocol):
    """A model, its data and its loss. Losses are sums: the engine divides by the count of the whole global batch.

    A task may also have `losses(model, batch)`, several losses by name; `optimizers(module, spec)`, optimizers of its
    own by name; and `shuffle`. See `worker.tasks.custom.CustomTask`.
    """

    examples: Examples
    tokens_per_example: int
    """0 where the word means nothing."""

    def build_model(self) -> nn.Module:
        """A fresh model; its initial weights come from torch's global generator."""
        ...

    def weight(self, indices: Indices) -> float:
        """What the summed loss of these examples is divided by; held-out ones are counted on after those for training.
        Every rank knows the whole global batch, so the global count needs no communication."""
        ...

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """The loss, summed over the examples or tokens of the batch."""
        ...

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        """Sums by metric name, `eval/loss` among them."""
        ...
