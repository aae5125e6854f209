"""The structure of a model as far as its memory depends on it: parameters, layers, blocks."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

Kind = Literal["linear", "embedding", "norm", "other"]


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor."""

    name: str
    """Its name in `named_parameters`."""
    shape: tuple[int, ...]
    kind: Kind = "linear"
    """The kind of the module that holds it; adapters can be added to `linear` layers."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Transformer:
    """The sizes of a decoder that determine its activation memory."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    gated: bool
    """True (Llama): the feed-forward has two up-projections, one through the activation, and norms are RMSNorm. False
    (GPT): a single up-projection, and LayerNorm."""
    builtin: bool = False
    """Whether it is a builtin model; `llama` computes the rotation of positions in each layer."""
    fused_norms: bool = False
    """Whether RMSNorm is a single kernel, like torch's on GPUs; it saves its input in the input's dtype."""
    scales_logits: bool = False
    """Whether the output of the head is multiplied before it is the logits."""


@dataclass(frozen=True)
class Encoder:
    """The sizes of a model of texts or images that determine its activation memory; all its tokens see each other."""

    width: int
    heads: int
    feed_forward: int
    post_norm: bool
    """Whether norms follow the residual connections (BERT), instead of preceding attention and feed-forward (ViT)."""
    dropout: bool
    """Whether a block drops values out in training."""
    tokens: int = 0
    """Tokens of an image; 0: the model reads texts."""
    pixels: int = 0
    """Values of an image."""


@dataclass(frozen=True)
class ModelStructure:
    """The parameters of a model, each once, in the model's order, and its blocks."""

    parameters: tuple[Parameter, ...]
    blocks: tuple[str, ...]
    """Modules that are computed one after the other; each can become an FSDP unit."""
    output: str | None = None
    """The output layer, to which `lora.targets: auto` adds no adapter."""
    tied: frozenset[str] = frozenset()
    """Layers that share their weight with another layer; they get no adapters."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of tied parameters, as (alias, name)."""
    transformer: Transformer | None = None
    encoder: Encoder | None = None
    head: frozenset[str] = frozenset()
    """Modules of a classifier that are trained whole beside adapters."""
    sizes: tuple[int, ...] = ()
    """Values that each block saves per example, for models other than transformers."""

    @cached_property
    def count(self) -> int:
        """The number of elements of all parameters."""
        return sum(parameter.size for parameter in self.parameters)
