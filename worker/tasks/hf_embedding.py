"""A Hugging Face model that makes a vector of a text, from a local folder of safetensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from worker.core.errors import RefusedError
from worker.tasks.hf_model import HfFolder, without_cache


def load_embedding(folder: HfFolder, pooling: str) -> nn.Module:
    """Return the body of the model in fp32 and training mode; called with tokens and mask it returns vectors of length
    1, (n, width). A head for other purposes is left out.

    Raises:
        RefusedError: The folder lacks a part of the body, or the model reads no texts.
    """
    from transformers import AutoModel

    model = folder.load_weights("a model that reads texts", AutoModel, lambda model, name: name.startswith("pooler."))
    if getattr(model.config, "is_encoder_decoder", False):
        raise RefusedError(f"model.path: {folder.path} is a model of an encoder and a decoder; use one of both alone")
    without_pooler(model)
    without_cache(model)
    folder.check_vocabulary(model)
    model.forward = partial(_forward, model.forward, pooling)
    model.train()
    return model  # type: ignore[no-any-return]


def without_pooler(model: Any) -> None:
    """Remove the layer that some encoders have for a pretraining task: no vector here is made by it."""
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None


def pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return a vector of length 1 for each text: fp32, (n, width).

    Args:
        hidden: (n, length, width).
        mask: 1 for the tokens of a text, which are before its padding: int64, (n, length).
        pooling: `mean`, `first` or `last`.
    """
    hidden = hidden.float()
    if pooling == "mean":
        weights = mask.to(hidden.dtype)[..., None]
        vectors = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    elif pooling == "first":
        vectors = hidden[:, 0]
    else:
        vectors = hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1]
    return functional.normalize(vectors, dim=-1)


def _forward(own_forward: Callable[..., Any], pooling: str, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = own_forward(input_ids=tokens, attention_mask=mask)[0]
    return pooled(hidden, mask, pooling)
