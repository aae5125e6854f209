"""Loads a model that embeds texts, which makes vectors as in its training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainyard.contract.wire.exported import TextVectors
from trainyard.loading.language_models import add_adapters, load_body, load_tokenizer
from worker.data.parsed_records import padding_of
from worker.data.token_lists import TokenLists
from worker.tasks.hf_embedding import pooled


class TextEmbedder(nn.Module):
    """A model of transformers that makes a vector of length 1 of each text."""

    def __init__(self, body: nn.Module, tokenizer: Any, vectors: TextVectors) -> None:
        super().__init__()
        self.body = body
        self.vectors = vectors
        self._tokenizer = tokenizer

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the vectors of rows of tokens that are padded at their ends: fp32, (n, width)."""
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask)[0]
        return pooled(hidden, attention_mask, self.vectors.pooling)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], *, batch_size: int = 32) -> torch.Tensor:
        """Return the vectors of texts, whose products are cosine similarities: fp32, (texts, width), on the CPU.

        Args:
            batch_size: Texts that are computed at once.
        """
        device = next(self.body.parameters()).device
        parts = [torch.empty((0, self.vectors.width))]
        for start in range(0, len(texts), batch_size):
            some = list(texts[start : start + batch_size])
            rows = self._tokenizer(some, truncation=True, max_length=self.vectors.max_length)["input_ids"]
            padding = padding_of(self._tokenizer)
            lists = TokenLists.of([row or [padding] for row in rows], padding)
            tokens, mask = (torch.from_numpy(array).to(device) for array in lists.padded(np.arange(len(rows))))
            parts.append(self(tokens, mask).cpu())
        return torch.cat(parts)


def load_embedder(folder: Path, vectors: TextVectors, dtype: Any, base: Path | None = None) -> tuple[TextEmbedder, Any]:
    """Return the model of an export and its tokenizer. Other arguments and errors: see `load_whole`.

    Args:
        base: The folder of the base model, if the export holds adapters.
    """
    tokenizer = load_tokenizer(folder)
    body = load_body(folder, dtype) if base is None else add_adapters(load_body(base, dtype), folder)
    return TextEmbedder(body, tokenizer, vectors), tokenizer
