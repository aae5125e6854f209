"""Training and evaluation examples in memory, and the batches made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.mixture import Mixture
from worker.data.sampler import EpochOrder, Indices

Tensors = tuple[torch.Tensor, ...]

IGNORED_LABEL = -100
"""The label of a position that is no target; `cross_entropy` and transformers use the same value."""


@dataclass(frozen=True)
class BatchTokens:
    """The tokens of a batch that the model computes, without padding."""

    tokens: int = 0
    squares: float = 0.0
    """The sum of the squared lengths of the sequences that attend to themselves, to which attention is proportional."""
    targets: int | None = None
    """The tokens for which logits are needed; None for all."""


class CountsTokens(Protocol):
    """Counts the tokens of examples."""

    def of(self, indices: Indices) -> BatchTokens:
        """Return the tokens of the batch of these examples."""
        ...


@dataclass(frozen=True)
class TokenCounts:
    """The values of `BatchTokens` for each example, training before held-out examples; shape (examples,)."""

    tokens: NDArray[np.int64]
    squares: NDArray[np.float64]
    targets: NDArray[Any] | None = None

    def of(self, indices: Indices) -> BatchTokens:
        targets = None if self.targets is None else int(self.targets[indices].sum())
        return BatchTokens(int(self.tokens[indices].sum()), float(self.squares[indices].sum()), targets)


@dataclass(frozen=True)
class Examples:
    """Tensors whose first dimension counts examples: the first `train` rows are for training, the next `held_out`
    rows for evaluation. The base class of all examples."""

    tensors: Tensors
    train: int
    held_out: int
    held_out_sets: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """The number of held-out examples of each named set, in order; the sum is `held_out`. Empty for one unnamed set."""
    mixture: Mixture | None = field(default=None, kw_only=True)
    """The sources of the training examples, if they are drawn from by weight."""
    packed: bool = field(default=False, kw_only=True)
    """Whether a row holds several texts, which do not attend to each other."""

    @property
    def token_counts(self) -> CountsTokens | None:
        """The tokens that the model computes for each example; None for the mean number of the task."""
        return None

    def order_by_epoch(self) -> EpochOrder | None:
        """Return the order of the examples of each epoch; None if it follows from `mixture` and the spec alone."""
        return None

    def largest(self, count: int) -> Indices:
        """Return `count` training examples that need the most memory, as far as their sizes are known: int64, shape
        (count,)."""
        return np.arange(count, dtype=np.int64)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that identify the training examples."""
        return [tensor[: self.train].numpy() for tensor in self.tensors]

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Gather the rows `indices` (int64, shape (n,)) of every tensor on `device`: shapes (n, ...)."""
        rows = torch.from_numpy(indices)
        return tuple(tensor.index_select(0, rows).to(device, non_blocking=True) for tensor in self.tensors)

    def held_out_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Gather held-out rows, counted from 0 at the first held-out example."""
        return self.train_batch(indices + self.train, device)
