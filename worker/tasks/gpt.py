"""A decoder-only transformer in the style of GPT-2: pre-norm blocks, learned positions, optionally tied embeddings."""

import torch
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from worker.tasks.cross_entropy import PLAIN, Terms
from worker.tasks.language_loss import Head, at_positions, head_loss
from worker.tasks.linear_loss import LinearHead
from worker.tasks.packing import AttentionShape, Boundaries, KernelFit, attend, separate


class Attention(nn.Module):
    """Causal multi-head self-attention (arXiv:1706.03762). No key bias: its gradient is zero except for rounding, which
    Adam would turn into steps."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, within: torch.Tensor | Boundaries | None = None) -> torch.Tensor:
        """Return (batch, length, width) from `x` of the same shape. `within`: see `attend`."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        # q, k, v: (batch, heads, length, width // heads)
        mixed = attend(q, k, v, within, dropout)
        output: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return output


class Block(nn.Module):
    """A pre-norm residual block: attention, then a feed-forward network."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, within: torch.Tensor | Boundaries | None = None) -> torch.Tensor:
        """Return (batch, length, width) from `x` of the same shape."""
        x = x + self.dropout(self.attention(self.norm_attention(x), within))
        output: torch.Tensor = x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))
        return output


class Gpt(nn.Module):
    """A language model whose forward returns logits, or with labels the loss: summed, or of each row (`PER_ROW`)."""

    calls_embeddings = True
    """Untied embeddings and head are only called, and their weights not read elsewhere: each may be a sharding unit."""
    takes_boundaries = False
    """Whether examples of packed rows are kept apart by their boundaries, not by a mask."""

    def __init__(self, spec: GptModel) -> None:
        super().__init__()
        self.kernel_fit = KernelFit(spec.width // spec.heads, "it has dropout" if spec.dropout else "")
        self.attention_shape = AttentionShape(
            spec.heads, spec.heads, self.kernel_fit.head_width, spec.context, spec.dropout
        )
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.positions = nn.Embedding(spec.context, spec.width)
        self.blocks = nn.ModuleList(Block(spec.width, spec.heads, spec.dropout) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = None if spec.tied else nn.Linear(spec.width, spec.vocab, bias=False)
        self.apply(_initialise)
        for block in self.blocks:
            for output in (block.attention.out, block.feed_forward[2]):  # type: ignore[union-attr, index]
                nn.init.normal_(output.weight, std=0.02 / (2 * spec.layers) ** 0.5)  # type: ignore[union-attr, arg-type]

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        terms: Terms = PLAIN,
        ends: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits (batch, length, vocabulary), or with `labels` the loss that `terms` requests.

        Args:
            tokens: int64, (batch, length).
            labels: int64, (batch, length): the next token of each position, or `IGNORED_LABEL`.
            positions: int64, (batch, length), counted from 0 in each example of a packed row. Examples of a row do not
                attend to each other.
            terms: The parts of the loss beside the cross entropy, or `PER_ROW`.
            ends: int32, (batch, examples): where each example of a packed row ends; see `boundaries_of`.
            last: int64, (batch,): the positions whose logits alone are returned, (batch, vocabulary).
        """
        within = None
        if positions is None:
            x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        else:
            x = self.embedding(tokens) + self.positions(positions)
            within = separate(positions, ends, takes_boundaries=self.takes_boundaries)
        for block in self.blocks:
            x = block(x, within)
        x = self.norm(x)
        if labels is not None:
            weights = self.get_output_embeddings().parameters()
            return head_loss(x, labels, self._linear_head(), self.embedding.num_embeddings, weights, terms)
        return self._logits(x if last is None else at_positions(x, last))

    def take_boundaries(self) -> None:
        """Keep the examples of packed rows apart by `attend_by_kernel`."""
        self.takes_boundaries = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens (transformers' name)."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that computes the logits, or the embedding that shares its weight (transformers' name)."""
        return self.embedding if self.head is None else self.head

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear_head()(x)

    def _linear_head(self) -> Head:
        return LinearHead(self.embedding.weight).logits if self.head is None else self.head


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
