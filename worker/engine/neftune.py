"""Noise on the embeddings of tokens in training (NEFTune, arXiv:2310.05914)."""

from typing import Any

import torch
from torch import nn


def add_embedding_noise(model: nn.Module, alpha: float) -> None:
    """Make the input embeddings add noise to their output while the model is in training mode: uniform values of at
    most alpha / sqrt(L d), for rows of L tokens, padding included as in transformers, with d values each.

    The noise is of torch's default generator, which differs on each rank: a resumed run draws the same noise, another
    number of ranks does not.
    """
    get: Any = getattr(model, "get_input_embeddings", None)
    if alpha and get is not None:
        get().register_forward_hook(_Noise(alpha))


class _Noise:
    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return output
        largest = self._alpha / (output.shape[1] * output.shape[2]) ** 0.5
        return output + torch.empty_like(output).uniform_(-largest, largest)
