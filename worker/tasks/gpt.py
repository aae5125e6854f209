"""A decoder-only transformer: pre-norm blocks, learned positions, one weight for embedding and head."""

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.sections import GptModel


class Attention(nn.Module):
    """Causal self-attention. No key bias: its gradient is zero but for rounding, which Adam would turn into steps."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and added to the stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        stream: torch.Tensor = x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))
        return stream


class Gpt(nn.Module):
    """Token ids in, logits out."""

    def __init__(self, spec: GptModel) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.positions = nn.Embedding(spec.context, spec.width)
        self.blocks = nn.ModuleList(Block(spec.width, spec.heads, spec.dropout) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = None if spec.tied else nn.Linear(spec.width, spec.vocab, bias=False)
        self.apply(_initialise)
        for block in self.blocks:
            for output in (block.attention.out, block.feed_forward[2]):  # type: ignore[union-attr, index]
                nn.init.normal_(output.weight, std=0.02 / (2 * spec.layers) ** 0.5)  # type: ignore[union-attr, arg-type]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: torch.Tensor = functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
