"""A decoder-only transformer of Llama's architecture (arXiv:2302.13971, grouped queries: arXiv:2307.09288).

Modules have the names of `LlamaForCausalLM` in transformers, so that an export is a model of that class.
"""

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.decoders import LlamaModel
from worker.tasks.cross_entropy import PLAIN, Terms
from worker.tasks.language_loss import at_positions, head_loss
from worker.tasks.packing import AttentionShape, Boundaries, KernelFit, attend, separate


class Attention(nn.Module):
    """Causal attention with rotary positions; groups of query heads share a head of keys and values."""

    def __init__(self, spec: LlamaModel) -> None:
        super().__init__()
        self.head_width = spec.width // spec.heads
        self.rope_theta = spec.rope_theta
        shared = spec.grouped_heads * self.head_width
        self.q_proj = nn.Linear(spec.width, spec.width, bias=False)
        self.k_proj = nn.Linear(spec.width, shared, bias=False)
        self.v_proj = nn.Linear(spec.width, shared, bias=False)
        self.o_proj = nn.Linear(spec.width, spec.width, bias=False)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, within: torch.Tensor | Boundaries | None
    ) -> torch.Tensor:
        """Return (batch, length, width) from `x` of the same shape.

        Args:
            positions: int64, (batch or 1, length). They are rotated here, because sharded strategies cast the floating
                point arguments of a layer to bf16, in which large angles have no digits left.
            within: See `attend`.
        """
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.head_width)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = rotation(positions, self.head_width, self.rope_theta)
        # The kernels return the layout of q: rotated before it is transposed, the output needs no copy.
        q, k, v = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        mixed = attend(q, k, v, within)
        output: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, spec: LlamaModel) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.width, spec.feed_forward_width, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.feed_forward_width, bias=False)
        self.down_proj = nn.Linear(spec.feed_forward_width, spec.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `x`, (batch, length, width)."""
        output: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """A pre-norm residual block: attention, then the feed-forward network."""

    def __init__(self, spec: LlamaModel) -> None:
        super().__init__()
        self.self_attn = Attention(spec)
        self.mlp = FeedForward(spec)
        self.input_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_eps)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, within: torch.Tensor | Boundaries | None = None
    ) -> torch.Tensor:
        """Return (batch, length, width) from `x` of the same shape; see `Attention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), positions, within)
        output: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, spec: LlamaModel) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor | None,
        within: torch.Tensor | Boundaries | None = None,
    ) -> torch.Tensor:
        """Return the input of the head, (batch, length, width); see `Llama.forward` and `attend`."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, positions, within)
        output: torch.Tensor = self.norm(x)
        return output


class Llama(nn.Module):
    """A language model whose forward returns logits, or with labels the loss: summed, or of each row (`PER_ROW`)."""

    calls_embeddings = True
    """Untied embeddings and head are only called, and their weights not read elsewhere: each may be a sharding unit."""
    takes_boundaries = False
    """Whether examples of packed rows are kept apart by their boundaries, not by a mask."""

    def __init__(self, spec: LlamaModel) -> None:
        super().__init__()
        self.kernel_fit = KernelFit(spec.width // spec.heads)
        self.attention_shape = AttentionShape(spec.heads, spec.grouped_heads, self.kernel_fit.head_width, spec.context)
        self.model = Decoder(spec)
        self.lm_head = nn.Linear(spec.width, spec.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                closes_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * spec.layers) ** 0.5 if closes_residual else 0.02)
        if spec.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

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
            ends: int32, (batch, examples): where each example of a packed row ends; see `boundaries_of`.
            last: int64, (batch,): the positions whose logits alone are returned, (batch, vocabulary).
        """
        within = None
        if positions is not None:
            within = separate(positions, ends, takes_boundaries=self.takes_boundaries)
        x = self.model(tokens, positions, within)
        if labels is not None:
            return head_loss(x, labels, self.lm_head, self.lm_head.out_features, self.lm_head.parameters(), terms)
        logits: torch.Tensor = self.lm_head(x if last is None else at_positions(x, last))
        return logits

    def take_boundaries(self) -> None:
        """Keep the examples of packed rows apart by `attend_by_kernel`."""
        self.takes_boundaries = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens (transformers' name)."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that computes the logits (transformers' name)."""
        return self.lm_head


def rotation(positions: torch.Tensor, head_width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines of rotary positions (arXiv:2104.09864): fp32, (batch or 1, length, 1, head_width /
    2)."""
    exponents = torch.arange(0, head_width, 2, device=positions.device).float() / head_width
    angles = positions[:, :, None, None].float() * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + head_width / 2) of `x` (batch, length, heads, head_width), in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
