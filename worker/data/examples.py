"""Training and evaluation examples in memory, and the batches made of them."""

from dataclasses import dataclass

import torch

from worker.data.sampler import Indices

Tensors = tuple[torch.Tensor, ...]

IGNORED_LABEL = -100
"""The label of a position that is no target; `cross_entropy` and transformers use the same value."""


@dataclass(frozen=True)
class Examples:
    """Tensors whose first dimension counts examples: the first `train` rows are for training, the next `held_out`
    rows for evaluation."""

    tensors: Tensors
    train: int
    held_out: int

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Gather the rows `indices` (int64, shape (n,)) of every tensor on `device`: shapes (n, ...)."""
        rows = torch.from_numpy(indices)
        return tuple(tensor[rows].to(device, non_blocking=True) for tensor in self.tensors)

    def held_out_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Gather held-out rows, counted from 0 at the first held-out example."""
        return self.train_batch(indices + self.train, device)
