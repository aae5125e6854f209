"""The builtin language models."""

from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import Float, Fraction, PositiveFloat, PositiveInt, Strict


class GptModel(Strict):
    """The builtin decoder-only transformer: pre-norm blocks, learned positions, tied embeddings."""

    source: Literal["builtin"] = "builtin"
    name: Literal["gpt"] = "gpt"
    layers: PositiveInt = 4
    """Number of blocks."""
    width: PositiveInt = 128
    """Width of the residual stream; a multiple of `heads`."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    context: PositiveInt = 128
    """Tokens per example."""
    vocab: PositiveInt = 256
    """At least 256: tokens are bytes."""
    dropout: Fraction = 0.0
    """Probability of dropout."""
    tied: bool = True
    """Share a weight between the embedding and the output layer."""


class LlamaModel(Strict):
    """The builtin decoder-only transformer of Llama's architecture: rotary positions, grouped-query attention, SwiGLU,
    RMSNorm, no biases. Its export is a Hugging Face model of the class `LlamaForCausalLM`."""

    source: Literal["builtin"] = "builtin"
    name: Literal["llama"] = "llama"
    layers: PositiveInt = 4
    """Number of blocks."""
    width: PositiveInt = 128
    """Width of the residual stream; a multiple of twice `heads`."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    key_value_heads: PositiveInt | None = None
    """Number of heads of keys and values; a divisor of `heads`. Absent: as many as `heads`."""
    feed_forward: PositiveInt | None = None
    """Width of the feed-forward network. Absent: 8/3 of `width`, rounded up to a multiple of 64."""
    context: PositiveInt = 128
    """Tokens per example."""
    vocab: PositiveInt = 256
    """At least 256: tokens are bytes."""
    rope_theta: Annotated[Float, Field(ge=1)] = 10_000.0
    """Base of the wavelengths of the rotary positions."""
    norm_eps: PositiveFloat = 1e-5
    """Term that RMSNorm adds to the mean square."""
    tied: bool = False
    """Share a weight between the embedding and the output layer."""

    @property
    def grouped_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def feed_forward_width(self) -> int:
        """The width of the feed-forward network."""
        return self.feed_forward or -(-8 * self.width // 192) * 64


BuiltinDecoder = GptModel | LlamaModel
"""The builtin language models."""
